// Prints the scores of the images of a JSON file, from a model in onnxruntime-web (WebAssembly).

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';

// The packages are those of the current directory.
const ort = createRequire(`${process.cwd()}/`)('onnxruntime-web');
const [model, images] = process.argv.slice(2);
ort.env.wasm.numThreads = 1;
const session = await ort.InferenceSession.create(readFileSync(model), { executionProviders: ['wasm'] });
const { dims, data } = JSON.parse(readFileSync(images, 'utf8'));
const { scores } = await session.run({ images: new ort.Tensor('float32', Float32Array.from(data), dims) });
console.log(JSON.stringify(Array.from(scores.data)));
