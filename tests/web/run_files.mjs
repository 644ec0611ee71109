// Runs ONNX files with onnxruntime-web (WebAssembly) in node: for each run of a JSON file, the outputs or the error.

import { readFileSync, writeFileSync } from 'node:fs';
import * as ort from 'onnxruntime-web';

const [runsFile, resultsFile] = process.argv.slice(2);
ort.env.wasm.numThreads = 1;
ort.env.logLevel = 'fatal';
const results = [];
for (const { path, optimized, inputs } of JSON.parse(readFileSync(runsFile, 'utf8'))) {
  const session = await ort.InferenceSession.create(readFileSync(path), {
    executionProviders: ['wasm'],
    graphOptimizationLevel: optimized ? 'all' : 'disabled',
    logSeverityLevel: 4,
  });
  const answers = [];
  for (const { dims, data } of inputs) {
    try {
      const outputs = await session.run({ [session.inputNames[0]]: new ort.Tensor('float32', Float32Array.from(data), dims) });
      answers.push(session.outputNames.map((name) => Array.from(outputs[name].data, Number)));
    } catch (error) {
      answers.push(String(error));
    }
  }
  await session.release();
  results.push(answers);
}
writeFileSync(resultsFile, JSON.stringify(results));
