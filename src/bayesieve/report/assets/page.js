// Puts the page together: bar, comparison of several runs, the run that is chosen.

const DATA = JSON.parse(document.getElementById("data").textContent);

const LINKS = [
  ["summary", "Summary"], ["sieve", "Sieve"], ["try", "Try it"], ["left", "What is left"], ["trust", "Trust"],
  ["looks", "What it looks at"], ["training", "Training"], ["provenance", "Provenance"],
];

function runSections(run) {
  const view = makeView(run);
  const play = playSection(run, view);
  const pick = (input) => {
    if (!run.network) return;
    play.pick(input);
    fold(document.getElementById("try"), false);
    document.getElementById("try").scrollIntoView();
  };
  const present = (...nodes) => nodes.flat().filter(Boolean);
  const looks = present(featurePanel(run), attentionPanel(run), firstLayerPanel(run));
  const examples = examplePanels(run, pick);
  const node = el("div", { id: "run" },
    heroSection(run),
    section("sieve", "Move the threshold", "Every position of the slider is a network of its own, tested on all test examples. Numbers, zeros and the network to try follow it; summary and trust do not: they are about the network as it is.", el("div", { class: "grid" }, curvePanel(run, view))),
    section("try", "Try it", run.network ? "The network is in this page: change what it sees, and watch its prediction and its uncertainty." : null, el("div", { class: "grid" }, play.node)),
    section("left", "What is left", "Layer by layer, what the data called for.", el("div", { class: "grid" }, maskPanel(run, view), el("div", { class: "stack" }, layerTable(run), stayPanel(run)), inclusionPanel(run))),
    section("trust", "Can it be trusted?", "Confidence, uncertainty, and the examples behind them, of the network as it is: this section does not follow the slider.",
      el("div", { class: "grid three" }, present(certificatePanel(run), waysPanel(run), reliabilityPanel(run), riskPanel(run), confusionPanel(run), fitPanel(run), rankPanel(run), mapPanel(run, pick), examples))),
    looks.length ? section("looks", "What it looks at", null, el("div", { class: "grid" }, looks)) : null,
    section("training", "How it was trained", null, el("div", { class: "grid three" }, present(chainPanel(run), trainingPanels(run)))),
    provenanceSection(run));
  return { node, view, pick: play.pick };
}

// The runs from the lowest loss to the highest, "<" only where the next is significantly above; null where they cannot be compared.
function ranking(runs, key, name) {
  if (!DATA.ranked[key]) return null;
  const { order, beyond } = DATA.ranked[key];
  return `By ${name}: ${order.map((number, i) => runs[number].name + (i < beyond.length ? (beyond[i] ? " < " : " ≈ ") : "")).join("")}.`;
}

function comparison(runs, choose) {
  const q = (run) => (run.headline.way === "sampled" ? run.headline.sampled : run.headline.after.quality);
  const real = runs[0].task === "regression";
  // name, value, format, whether lower is better (null: neither), key of the losses behind it
  const rows = [
    ["test error", (run) => q(run).error, (v) => percent(v, 2), null, "error"],
    ["RMSE", (run) => q(run).rmse, number, null, "error"],
    ["NLL, nats", (run) => q(run).nll, number, null, "nll"],
    ["ECE", (run) => q(run).ece, (v) => percent(v, 2), null],
    ["90 % interval holds", (run) => q(run).coverage_90, (v) => percent(v, 1), null],
    ["zeros", (run) => run.headline.after.zeros, percent, false],
    ["parameters kept", (run) => run.headline.after.weights, count, true],
    ["size of the weights", (run) => run.headline.after.bytes, bytes, true],
    ["multiply-adds", (run) => run.headline.after.macs, short, true],
    ["training, seconds", (run) => run.provenance.seconds, (v) => number(v, 3), null],
  ].filter(([, value]) => runs.some((run) => value(run) !== undefined && value(run) !== null));
  const cell = (value, text, best, note) => el("td", { class: best ? "best" : note && note.chance ? "chance" : "" }, text, note ? el("small", {}, note.text) : null);
  const body = rows.map(([name, value, format, lower, key]) => {
    const items = runs.map(value), known = items.filter((v) => v !== null && v !== undefined);
    const paired = key && known.length === runs.length ? DATA.ranked[key] : null;
    const alone = paired && paired.gaps.every((gap) => gap === null || gap.interval[0] > 0);
    const top = lower === null || new Set(known).size < 2 ? null : lower ? Math.min(...known) : Math.max(...known);
    const [scale, digits] = key === "error" && !real ? [100, 2] : [1, 3];
    const note = (i) => {
      if (!paired || paired.gaps[i] === null) return null;
      const { worse_by: difference, interval } = paired.gaps[i], chance = interval[0] <= 0;
      return { chance, text: `${chance ? "not significant: " : ""}+${(scale * difference).toFixed(digits)} (${interval.map((v) => (scale * v).toFixed(digits)).join(" to ").replace(/-/g, "−")})` };
    };
    return el("tr", {}, el("th", { scope: "row" }, words(name)), items.map((item, i) => (item === undefined || item === null
      ? el("td", {}, "–") : cell(item, format(item), paired ? paired.order[0] === i && alone : top !== null && item === top, note(i)))));
  });
  const tasks = new Set(runs.map((run) => run.task));
  const ranks = tasks.size === 1 ? [ranking(runs, "error", real ? "RMSE" : "error"), ranking(runs, "nll", "NLL")].filter(Boolean) : [];
  const table = panel({
    title: "Side by side", name: "runs", wide: true, caption: "On the test set of each run, with the way to predict under its name. Of runs on the same test examples each error has its paired difference to the lowest with the interval of 95 %; the lowest is bold only where it is significantly below every other.",
    data: () => ({ header: ["", ...runs.map((run) => run.name)], rows: rows.map(([name, value]) => [name, ...runs.map(value)]) }),
    body: [ranks.length ? el("p", { class: "ranking" }, words(ranks.join(" ")), " < is a significant difference (95 %), ≈ is not.") : null, scroll("Side by side", el("table", { id: "compare" },
      el("thead", {}, el("tr", {}, el("td", {}), runs.map((run) => el("th", { scope: "col" }, el("b", {}, run.name), el("small", {}, words(`${run.setup}; ${run.headline.predictor}`)))))), el("tbody", {}, body)))],
  });
  const tabs = el("div", { class: "tabs", role: "tablist", "aria-label": "Runs" }, runs.map((run, i) => el("button", {
    type: "button", class: "button", role: "tab", "aria-selected": i === 0 ? "true" : "false", onclick: () => choose(i),
  }, run.name)));
  tabs.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const at = [...tabs.children].indexOf(event.target);
    if (!step || at < 0) return;
    const next = (at + step + runs.length) % runs.length;
    tabs.children[next].focus();
    choose(next);
  });
  return el("section", { id: "runs" }, el("h1", {}, `${runs.length} runs compared`), el("h2", { class: "unseen" }, "Numbers and curves of all runs"),
    el("div", { class: "grid" }, table, tasks.size === 1 ? [sizePanel(runs), comparedCurves(runs)] : null), el("p", { class: "lead" }, "One run at a time:"), tabs);
}

function themeButton(onChange) {
  const dark = () => {
    const item = document.documentElement.dataset.theme;
    return item ? item === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const button = el("button", { type: "button", class: "button", id: "theme", onclick: () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    write();
    onChange();
  } });
  const write = () => { button.textContent = dark() ? "Light" : "Dark"; };
  write();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { write(); onChange(); });
  return button;
}

function start() {
  const runs = DATA.runs, asked = readState(location.hash);
  if (["light", "dark"].includes(asked.theme)) document.documentElement.dataset.theme = asked.theme;
  let number = 0, waiting = 0;
  const isImage = () => runs[number].inputs.kind === "image";
  const state = () => ({
    run: runs.length > 1 ? number : null, cut: current.view.cut || null, theme: document.documentElement.dataset.theme,
    x: runs[number].network ? encodeInput(current.view.tried, isImage()) : null,
  });
  // The address follows what is shown, once the reader has stopped.
  const remember = () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => location.replace(writeState(state())), 400);
  };
  const place = el("div", {}), foot = el("div", {});
  let current = null;
  const choose = (index) => {
    number = index;
    current = runSections(runs[index]);
    place.replaceChildren(current.node);
    foot.replaceChildren(current.view.dock);
    current.view.changed = () => { if (document.documentElement.dataset.touched) remember(); };
    document.querySelectorAll('[role="tab"]').forEach((tab, i) => tab.setAttribute("aria-selected", String(i === index)));
  };
  // Canvases hold colours, not variables: they are painted again when the theme changes.
  const recolor = () => {
    current.view.repaint();
    document.querySelectorAll(".tiles").forEach((tiles) => tiles.repaint());
  };
  const links = runs.length > 1 ? [["runs", "Runs"], ...LINKS] : LINKS;
  document.getElementById("page").append(
    el("header", { class: "top" }, el("div", { class: "row" }, el("span", { class: "brand" }, "bayesieve"),
      el("nav", { "aria-label": "Sections" }, links.map(([id, text]) => el("a", { href: "#" + id }, text))),
      copyButton("Copy link", () => location.href.split("#")[0] + writeState(state()), "copy-link"), themeButton(recolor))),
    el("main", { id: "content" }, runs.length > 1 ? comparison(runs, choose) : null, place,
      el("footer", {}, glossary(), el("p", {}, `Made by bayesieve ${DATA.bayesieve}. This file needs no network and sends nothing. `,
        el("button", { type: "button", class: "button", onclick: () => save("report.json", JSON.stringify(DATA), "application/json") }, "All data as JSON")))),
    foot, el("p", { id: "status", class: "unseen", role: "status" }),
  );
  const open = () => {
    const target = document.getElementById(location.hash.slice(1));
    if (target && target.hasAttribute("data-folded")) fold(target, false);
  };
  addEventListener("hashchange", open);
  const first = Number(asked.run);
  choose(Number.isInteger(first) && first > 0 && first < runs.length ? first : 0);
  if (Number.isInteger(Number(asked.cut))) current.view.set(Number(asked.cut));
  if (asked.x && runs[number].network) {
    const given = decodeInput(asked.x, isImage(), runs[number].network.input_shape.reduce((a, b) => a * b, 1));
    if (given) setTimeout(() => current.pick(given), 20); // after the first example
  }
  // Only what the reader does changes the address.
  ["pointerdown", "keydown", "input"].forEach((name) => addEventListener(name, () => { document.documentElement.dataset.touched = "yes"; }, { capture: true, once: true }));
  const root = document.documentElement;
  let theme;
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((item) => { item.open = true; });
    theme = root.dataset.theme;
    root.dataset.theme = "light"; // paper is white
    recolor();
  });
  addEventListener("afterprint", () => {
    if (theme === undefined) delete root.dataset.theme;
    else root.dataset.theme = theme;
    recolor();
  });
  document.documentElement.dataset.ready = "yes";
}

start();
