// Runs a bundle's fused graph with onnxruntime-web: token ids in, greedy token ids out.
//
// Knows the graph contract of docs/architecture.md; knows no file system and no page. The caller
// gives the onnxruntime-web module and a function that reads a file of the bundle.

/**
 * Open a bundle.
 * @param {object} ort the onnxruntime-web module
 * @param {(name: string) => Promise<Uint8Array>} read gives a file of the bundle
 * @param {number} capacity tokens that prompt and answer may hold together
 */
export async function openDecoder(ort, read, capacity) {
  const manifest = JSON.parse(new TextDecoder().decode(await read("manifest.json")));
  const graph = manifest.graphs.find((g) => g.dialect === "fused");
  if (!graph) throw new Error("the bundle has no fused graph");
  const externalData = [];
  for (const path of graph.weights) externalData.push({ path, data: await read(path) });
  const session = await ort.InferenceSession.create(await read(graph.file), {
    executionProviders: ["wasm"],
    graphOptimizationLevel: "disabled", // the exporter wrote the fused operators itself
    externalData,
  });
  const { layers, kv_heads: heads, head_size: size } = manifest.dimensions;
  let cache = {};
  let held = 0;
  const reset = () => {
    held = 0;
    for (let layer = 0; layer < layers; layer++)
      for (const part of ["key", "value"])
        cache[`past_key_values.${layer}.${part}`] = new ort.Tensor(
          "float32", new Float32Array(heads * capacity * size), [1, heads, capacity, size]);
  };
  reset();

  /** Evaluate tokens on top of those held; the likeliest next one. */
  async function step(ids) {
    if (held + ids.length > capacity) throw new Error(`more than ${capacity} tokens`);
    held += ids.length;
    const int64 = (values, shape) => new ort.Tensor("int64", BigInt64Array.from(values, BigInt), shape);
    const int32 = (values, shape) => new ort.Tensor("int32", Int32Array.from(values), shape);
    const made = await session.run({
      ...cache,
      input_ids: int64(ids, [1, ids.length]),
      seqlens_k: int32([held - 1], [1]),
      total_sequence_length: int32([held], []),
      logits_indices: int64([ids.length - 1], [1, 1]),
    });
    for (const name of Object.keys(cache)) cache[name] = made[name.replace("past_key_values", "present")];
    const logits = made.logits.data;
    let best = 0;
    for (let i = 1; i < logits.length; i++) if (logits[i] > logits[best]) best = i;
    return best;
  }

  /** Greedy tokens after a prompt, until `count` or an end token; each is yielded as it comes. */
  async function* generate(prompt, count) {
    reset();
    let next = await step(prompt);
    for (let made = 1; ; made++) {
      yield next;
      if (made === count || manifest.tokenizer.end_token_ids.includes(next)) return;
      next = await step([next]);
    }
  }
  return { manifest, generate };
}
