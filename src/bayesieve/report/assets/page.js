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
    section("try", "Try it", run.network ? "The network is in this page: change what it sees, and watch its answer and its doubt." : null, el("div", { class: "grid" }, play.node)),
    section("left", "What is left", "Layer by layer, what the data called for.", el("div", { class: "grid" }, maskPanel(run, view), el("div", { class: "stack" }, layerTable(run), stayPanel(run)), inclusionPanel(run))),
    section("trust", "Can it be trusted?", "Confidence, doubt, and the examples behind them, of the network as it is: this section does not follow the slider.",
      el("div", { class: "grid three" }, present(certificatePanel(run), waysPanel(run), reliabilityPanel(run), riskPanel(run), confusionPanel(run), fitPanel(run), examples))),
    looks.length ? section("looks", "What it looks at", null, el("div", { class: "grid" }, looks)) : null,
    section("training", "How it was trained", null, el("div", { class: "grid three" }, present(chainPanel(run), trainingPanels(run)))),
    provenanceSection(run));
  return { node, view };
}

function comparison(runs, choose) {
  const best = (values, lower) => {
    const known = values.filter((v) => v !== null && v !== undefined);
    return known.length < 2 ? null : lower ? Math.min(...known) : Math.max(...known);
  };
  const q = (run) => run.headline.after.quality, s = (run) => run.headline.sampled || {};
  const rows = [
    ["test error", (run) => q(run).error, (v) => percent(v, 2), true],
    ["RMSE", (run) => q(run).rmse, number, true],
    ["test error, averaged over draws", (run) => s(run).error, (v) => percent(v, 2), true],
    ["RMSE, averaged over draws", (run) => s(run).rmse, number, true],
    ["NLL, nats", (run) => q(run).nll, (v) => number(v), true],
    ["NLL, averaged over draws", (run) => s(run).nll, (v) => number(v), true],
    ["ECE", (run) => q(run).ece, (v) => percent(v, 2), true],
    ["ECE, averaged over draws", (run) => s(run).ece, (v) => percent(v, 2), true],
    ["90 % interval holds", (run) => q(run).coverage_90, (v) => percent(v, 1), null],
    ["zeros", (run) => run.headline.after.zeros, (v) => percent(v), false],
    ["parameters kept", (run) => run.headline.after.weights, count, true],
    ["size of the weights", (run) => run.headline.after.bytes, bytes, true],
    ["multiply-adds", (run) => run.headline.after.macs, short, true],
    ["time of 64 examples, torch", (run) => (run.headline.after.latency_ms || {})["64"], milliseconds, true],
    ["time of 64 examples, runtime", (run) => (run.headline.after.runtime_ms || {})["64"], milliseconds, true],
    ["training, seconds", (run) => run.provenance.seconds, (v) => number(v, 3), null],
  ].filter(([, value]) => runs.some((run) => value(run) !== undefined && value(run) !== null));
  const body = rows.map(([name, value, format, lower]) => {
    const top = lower === null ? null : best(runs.map(value), lower);
    return el("tr", {}, el("th", { scope: "row" }, name), runs.map((run) => {
      const item = value(run);
      return el("td", { class: top !== null && item === top ? "best" : "" }, item === undefined || item === null ? "–" : format(item));
    }));
  });
  const tasks = new Set(runs.map((run) => run.task));
  const table = panel({
    title: "Side by side", name: "runs", wide: true, caption: "On the test set of each run, with mean weights unless a row says otherwise; the best number of a row is bold.",
    data: () => ({ header: ["", ...runs.map((run) => run.name)], rows: rows.map(([name, value]) => [name, ...runs.map(value)]) }),
    body: scroll("Side by side", el("table", { id: "compare" },
      el("thead", {}, el("tr", {}, el("td", {}), runs.map((run) => el("th", { scope: "col" }, el("b", {}, run.name), el("small", {}, run.setup))))), el("tbody", {}, body))),
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
  return el("section", { id: "runs" }, el("h1", {}, `${runs.length} runs compared`),
    el("div", { class: "grid" }, table, tasks.size === 1 ? comparedCurves(runs) : null), el("p", { class: "lead" }, "One run at a time:"), tabs);
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
  const runs = DATA.runs;
  const place = el("div", {}), foot = el("div", {});
  let current = null;
  const choose = (index) => {
    current = runSections(runs[index]);
    place.replaceChildren(current.node);
    foot.replaceChildren(current.view.dock);
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
      el("nav", { "aria-label": "Sections" }, links.map(([id, text]) => el("a", { href: "#" + id }, text))), themeButton(recolor))),
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
  choose(0);
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
