// Prints the label of a text, from a model in transformers.js.

import { createRequire } from 'node:module';

// The packages are those of the current directory.
const { env, pipeline } = createRequire(`${process.cwd()}/`)('@huggingface/transformers');
const [models, model, text] = process.argv.slice(2);
env.allowRemoteModels = false;
env.localModelPath = models;
const classify = await pipeline('text-classification', model, { dtype: 'fp32' });
const [label] = await classify(text);
console.log(JSON.stringify(label));
