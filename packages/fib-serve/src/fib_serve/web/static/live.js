// Reloads the main part of the page of a submission that is queued or running, at each of its changes.
const main = document.querySelector("main[data-changes]");
const RETRY_MS = 5000;
const refresh = async () => {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fresh = page.querySelector("main");
  main.replaceChildren(...fresh.childNodes);
  return answer.ok && !fresh.dataset.changes;
};
const follow = async () => {
  for (;;) {
    const answer = await fetch(main.dataset.changes).catch(() => undefined); // it waits for a change
    if (!answer?.ok) await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    else if (await refresh()) return;
  }
};
if (main) follow();
