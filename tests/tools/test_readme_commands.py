from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from edge_tools.readme_commands import Block, blocks, commands, script

from edge_runtime.errors import UsageError

README = Path(__file__).resolve().parents[2] / "README.md"
TEXT = """\
# Title

```sh
# a comment
one --flag   "x y"   # trailing
two \\
    --more
```

```json
{"not": "run"}
```

```python
print('it\\'s "fine"')
```
"""


def test_blocks_that_are_promises_are_found_with_their_lines():
    assert [(b.language, b.line) for b in blocks(TEXT)] == [("sh", 4), ("python", 15)]


def test_commands_are_joined_and_comments_left_out():
    assert commands(blocks(TEXT)[0]) == ['one --flag "x y" # trailing', "two --more"]


def test_an_open_fence_is_an_error():
    with pytest.raises(UsageError, match="line 2"):
        blocks("```sh\nls\n")


def test_the_script_keeps_what_earlier_blocks_made_and_stops_at_a_failure(tmp_path: Path):
    found = [
        Block("sh", 1, "mkdir made && cd made\nX='a b'"),
        Block("sh", 5, 'echo "$X" > file\nskip me'),
        Block("sh", 9, "false\necho reached > later"),
    ]
    made = script(found, left_out={"skip me"})
    result = subprocess.run(["sh", "-c", made], cwd=tmp_path, capture_output=True, check=False)
    assert result.returncode != 0
    assert (tmp_path / "made" / "file").read_text() == "a b\n"
    assert not (tmp_path / "made" / "later").exists()


def test_the_readme_begins_with_the_two_commands():
    first = [c for b in blocks(README.read_text(encoding="utf-8")) for c in commands(b)][:2]
    assert first[0].startswith("sh tools/quickstart.sh")
    assert first[1] == "sh tools/test.sh"
