"""What an answer must look like: grammars, tools and reasoning. Knows no engine and no HTTP."""
