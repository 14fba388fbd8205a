"use strict";
const tip = document.getElementById("tip"), stale = document.getElementById("stale");
document.addEventListener("click", async event => {
  const button = event.target instanceof Element ? event.target.closest(".copy") : null;
  if (!button) return;
  const code = button.parentElement.querySelector("code");
  try { await navigator.clipboard.writeText(code.textContent); button.textContent = "copied"; }
  catch { getSelection().selectAllChildren(code); button.textContent = "selected"; }
});
document.addEventListener("pointerover", event => {
  const mark = event.target instanceof Element ? event.target.closest("[data-tip]") : null;
  tip.hidden = !mark;
  if (!mark) return;
  tip.textContent = mark.dataset.tip;
  tip.style.left = `${Math.max(8, Math.min(event.clientX + 12, document.documentElement.clientWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${event.clientY + 18}px`;
});

// The page anew, as the server made it; a script in it would not be run.
let seen = new Date();
const refresh = async () => {
  try {
    const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(10000) });
    if (!answer.ok) throw new Error(String(answer.status));
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.querySelector("main").replaceWith(document.adoptNode(fresh.querySelector("main")));
    document.title = fresh.title;
    seen = new Date();
    tip.hidden = stale.hidden = true;
  } catch {
    stale.textContent = `Not up to date: no answer since ${seen.toLocaleTimeString()}.`;
    stale.hidden = false;
  }
};
setInterval(() => { if (!document.hidden && getSelection().isCollapsed) refresh(); }, Number(document.body.dataset.every));
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
