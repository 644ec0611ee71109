// Runs pipelines of transformers.js over the cases of a JSON file, in node or, as a module of a page, in a browser.

export async function runCases(library, cases, root) {
  const { pipeline, env } = library;
  env.allowRemoteModels = false;
  env.allowLocalModels = true;
  env.localModelPath = root;
  const results = {};
  for (const { name, task, input, extra, options, load } of cases) {
    try {
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

if (typeof process !== 'undefined' && process.argv?.[2]) {
  const { readFileSync, writeFileSync } = await import('node:fs');
  const library = await import('@huggingface/transformers');
  const [casesFile, root, resultsFile] = process.argv.slice(2);
  const cases = JSON.parse(readFileSync(casesFile, 'utf8'));
  writeFileSync(resultsFile, JSON.stringify(await runCases(library, cases, root)));
}
