// Search in pages opened from disk: browsers refuse a Worker there, so a hidden frame runs its script.
"use strict";
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!doctype html><title>search</title>";
      frame.addEventListener("load", () => this.start(frame.contentWindow, url), { once: true });
      const append = () => document.body.append(frame);
      document.body ? append() : addEventListener("DOMContentLoaded", append);
    }
    start(inside, url) {
      const load = (address) => new Promise((resolve, reject) => {
        const script = inside.document.createElement("script");
        Object.assign(script, { src: address, onload: resolve, onerror: reject });
        inside.document.body.append(script);
      });
      inside.importScripts = (...list) =>
        list.reduce((before, one) => before.then(() => load(one)), Promise.resolve());
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      load(url).then(() => {
        this.inside = inside;
        this.waiting.splice(0).forEach((data) => this.postMessage(data));
      });
    }
    postMessage(data) {
      if (!this.inside) { this.waiting.push(data); return; }
      this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }));
    }
    terminate() {}
  };
}
