// On a narrow screen, responses that do not fit on it together are behind two tabs, A and B.  Each
// tab keeps its scroll position.

const NARROW = matchMedia("(max-width: 800px)");
const SWIPE = 60; // pixels

class Sides {
  constructor() {
    this.side = "a";
    this.tabs = $$("[role=tab]");
    for (const tab of this.tabs) {
      tab.onclick = () => this.choose(tab.dataset.side);
      tab.onkeydown = ({ key }) => {
        if (/^(Arrow(Left|Right)|Home|End)$/.test(key)) this.choose(this.otherFor(key), true);
      };
    }
    this.wireSwipes($(".responses"));
    window.addEventListener("resize", () => this.fit());
  }

  // Called when a pair appears: A first, as on a wide screen.
  show() {
    this.scrolled = {};
    this.seen = new Set();
    this.fit();
    this.select("a");
  }

  // Tabs only if the responses are taller than the window together.
  fit() {
    const responses = $(".responses");
    responses.classList.remove("tabbed");
    const marks = $$(".marks").reduce((height, list) => height + list.offsetHeight, 0); // a mark must not make tabs
    this.tabbed = NARROW.matches && responses.offsetHeight - marks > window.innerHeight;
    responses.classList.toggle("tabbed", this.tabbed);
    $(".sides").hidden = !this.tabbed;
    for (const response of $$(".response")) {
      response.setAttribute("role", this.tabbed ? "tabpanel" : "region");
    }
  }

  get other() {
    return this.side === "a" ? "b" : "a";
  }

  otherFor(key) {
    if (key === "Home") return "a";
    return key === "End" ? "b" : this.other;
  }

  toggle() {
    if (this.tabbed) {
      this.choose(this.other);
      announce(this.side === "a" ? t("Response A") : t("Response B"));
    } else $(`.response.${this.other}`).scrollIntoView({ block: "nearest" });
  }

  choose(side, focus = false) {
    if (!this.tabbed) return;
    const start = $(".responses").getBoundingClientRect().top + window.scrollY - $(".sides").offsetHeight;
    const before = window.scrollY;
    this.scrolled[this.side] = before;
    this.select(side);
    if (focus) $(`[role=tab][data-side=${side}]`).focus({ preventScroll: true });
    // While the prompt is on the screen, it stays.
    if (before > start) window.scrollTo(0, Math.max(this.scrolled[side] ?? start, start));
  }

  select(side) {
    this.side = side;
    this.seen.add(side);
    $(".responses").dataset.side = side;
    for (const tab of this.tabs) {
      const selected = tab.dataset.side === side;
      tab.setAttribute("aria-selected", String(selected));
      tab.tabIndex = selected ? 0 : -1;
      tab.classList.toggle("unread", !this.seen.has(tab.dataset.side));
    }
  }

  wireSwipes(area) {
    let from = null;
    area.addEventListener("touchstart", ({ touches, target }) => {
      from = touches.length === 1 && !scrollsSideways(target, area) ? touches[0] : null;
    }, { passive: true });
    area.addEventListener("touchend", ({ changedTouches: [to] }) => {
      if (!from) return;
      const across = to.clientX - from.clientX;
      const along = to.clientY - from.clientY;
      from = null;
      if (!document.getSelection().isCollapsed) return; // the touch selects text
      if (Math.abs(across) > SWIPE && Math.abs(across) > 2 * Math.abs(along)) this.choose(across < 0 === ($(".desk").dir === "ltr") ? "b" : "a");
    });
  }
}

// Whether the touch scrolls something wide, such as code, instead.
function scrollsSideways(node, area) {
  for (let each = node; each && each !== area; each = each.parentElement) {
    if (each.scrollWidth > each.clientWidth && /auto|scroll/.test(getComputedStyle(each).overflowX)) return true;
  }
  return false;
}
