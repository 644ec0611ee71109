// Runs pipelines of transformers.js over the cases of a JSON file, in node or, as a module of a page, in a browser.

export async function runCases(library, cases, root) {
  const { pipeline, env } = library;
  env.allowRemoteModels = false;
  env.allowLocalModels = true;
  env.localModelPath = root;
  const results = {};
  for (const { name, task, input, extra, options, load } of cases) {
    try {
      if (task === 'image-text-to-text') {
        results[name] = await generateFromTensors(library, name, input, options, load);
        continue;
      }
      const run = await pipeline(task, name, load);
      const audio = task === 'automatic-speech-recognition' ? Float32Array.from(input) : input;
      const output = extra === undefined ? await run(audio, options) : await run(audio, extra, options);
      results[name] = output?.dims ? { dims: output.dims, data: Array.from(output.data) } : output;
    } catch (error) {
      results[name] = { error: String(error?.stack ?? error) };
    }
  }
  return results;
}

/** The tokens that a model generates from given tensors, without its processor. */
async function generateFromTensors(library, name, input, options, load) {
  const model = await library.AutoModelForImageTextToText.from_pretrained(name, load);
  const tensors = {};
  for (const [key, { type, dims, data }] of Object.entries(input)) {
    const values = { int64: () => BigInt64Array.from(data, BigInt), bool: () => Uint8Array.from(data), float32: () => Float32Array.from(data) };
    tensors[key] = new library.Tensor(type, values[type](), dims);
  }
  const tokens = await model.generate({ ...tensors, ...options });
  return { data: Array.from(tokens.data, Number) };
}

if (typeof process !== 'undefined' && process.argv?.[2]) {
  const { readFileSync, writeFileSync } = await import('node:fs');
  const library = await import('@huggingface/transformers');
  const [casesFile, root, resultsFile] = process.argv.slice(2);
  const cases = JSON.parse(readFileSync(casesFile, 'utf8'));
  writeFileSync(resultsFile, JSON.stringify(await runCases(library, cases, root)));
}
