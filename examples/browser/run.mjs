// node run.mjs BUNDLE ID,ID,... [COUNT]: greedy tokens with onnxruntime-web (WebAssembly), as JSON.
//
// Needs `npm install onnxruntime-web` beside it.
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import * as ort from "onnxruntime-web";
import { openDecoder } from "./decoder.mjs";

const [bundle, ids, count = "16"] = process.argv.slice(2);
if (!bundle || !/^\d+(,\d+)*$/.test(ids ?? "")) {
  console.error("usage: node run.mjs BUNDLE ID,ID,... [COUNT]");
  process.exit(2);
}
ort.env.wasm.numThreads = 1;
ort.env.logLevel = "error";
const started = performance.now();
const decoder = await openDecoder(ort, (name) => readFile(join(bundle, name)), 512);
const loaded = performance.now();
const tokens = [];
for await (const token of decoder.generate(ids.split(",").map(Number), Number(count))) tokens.push(token);
console.log(JSON.stringify({
  model: decoder.manifest.name,
  onnxruntime_web: ort.env.versions.web,
  tokens,
  load_s: (loaded - started) / 1000,
  generate_s: (performance.now() - loaded) / 1000,
}));
