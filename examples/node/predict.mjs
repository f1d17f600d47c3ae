// Runs an exported ONNX file in Node.js and prints the class of every input.
//
//   npm install onnxruntime-node
//   node predict.mjs model.onnx inputs.json
//
// inputs.json: {"shape": [n, ...], "data": [all numbers in one list, row by row]}, prepared as the
// model was trained ("preprocessing" in the file's metadata). Output: {"classes": [...]}, and for
// a file with posterior draws also "entropy" and "mutual_information", in nats.

import { readFile } from "node:fs/promises";
import ort from "onnxruntime-node";

const [modelPath, inputsPath] = process.argv.slice(2);
if (!modelPath || !inputsPath) {
  console.error("usage: node predict.mjs model.onnx inputs.json");
  process.exit(2);
}

const { shape, data } = JSON.parse(await readFile(inputsPath, "utf8"));
const session = await ort.InferenceSession.create(modelPath);
const input = new ort.Tensor("float32", Float32Array.from(data), shape);
const outputs = await session.run({ input });

const scores = outputs.probability ?? outputs.output;
const nClasses = scores.dims[1];
const classes = [];
for (let start = 0; start < scores.data.length; start += nClasses) {
  const row = scores.data.subarray(start, start + nClasses);
  classes.push(row.indexOf(Math.max(...row)));
}

const result = { classes };
for (const name of ["entropy", "mutual_information"]) {
  if (outputs[name]) result[name] = Array.from(outputs[name].data);
}
console.log(JSON.stringify(result));
