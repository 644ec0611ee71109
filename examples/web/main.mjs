// Loads the model of models/ with transformers.js, runs it on the text of the form, and shows the result and the times.

import { env, pipeline } from '@huggingface/transformers';

env.allowRemoteModels = false;
env.allowLocalModels = true;
env.localModelPath = new URL('models/', location.href).pathname;
env.backends.onnx.wasm.wasmPaths = new URL('node_modules/onnxruntime-web/dist/', location.href).href;

const RUNS = 5;
const form = document.querySelector('form');
const status = document.querySelector('#status');
const result = document.querySelector('#result');
const { task, dtypes } = await (await fetch('models/model.json')).json();
form.dtype.replaceChildren(...dtypes.map((name) => new Option(name, name)));
const loaded = new Map();

/** The pipeline for a device and a dtype, loaded once. */
function load(device, dtype) {
  const key = `${device} ${dtype}`;
  if (!loaded.has(key)) loaded.set(key, pipeline(task, 'exported', { device, dtype }));
  return loaded.get(key);
}

/** The result of a function, and the milliseconds that it took. */
async function timed(run) {
  const start = performance.now();
  return [await run(), performance.now() - start];
}

async function run() {
  const { text, device, dtype } = Object.fromEntries(new FormData(form));
  if (device === 'webgpu' && !(await navigator.gpu?.requestAdapter())) throw new Error('this browser has no WebGPU');
  const [model, loading] = await timed(() => load(device, dtype));
  const options = task === 'text-classification' ? { top_k: null } : {};
  const [output] = await timed(() => model(text, options)); // the first run compiles the shaders
  const times = [];
  for (let index = 0; index < RUNS; index++) times.push((await timed(() => model(text, options)))[1]);
  times.sort((first, second) => first - second);
  result.textContent = JSON.stringify(output, null, 1);
  status.textContent = `${device}, ${dtype}: loaded in ${loading.toFixed(0)} ms, median of ${RUNS} runs ${times[RUNS >> 1].toFixed(1)} ms`;
}

form.addEventListener('submit', async (event) => {
  event.preventDefault();
  const button = form.querySelector('button');
  button.disabled = true;
  result.textContent = '';
  status.textContent = 'Running';
  await run().catch((error) => {
    status.textContent = `Failed: ${error.message}`;
  });
  button.disabled = false;
});
status.textContent = 'Ready';
form.querySelector('button').disabled = false;
