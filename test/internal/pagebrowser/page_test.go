//go:build browser

package pagebrowser

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// A click on a flow shows its way from GPU to GPU.
func TestDevmemRun(t *testing.T) {
	// With links of 200 Mbit/s the transfer takes five seconds or more.
	pair, err := exec.Command(os.Getenv("VNIC"), "lab", "show", "pair").Output()
	if err != nil {
		t.Fatal(err)
	}
	slow := filepath.Join(t.TempDir(), "pair.yaml")
	pair = bytes.ReplaceAll(pair, []byte("        mtu:"), []byte("        rate: 200Mbit\n        mtu:"))
	if err := os.WriteFile(slow, pair, 0o600); err != nil {
		t.Fatal(err)
	}
	v := start(t, "run", "--guest", "inproc", "--lab", slow, "--mode", "devmem", "--size", "128M", "--pause-at", "verify")
	v.waits("stage: transfer")
	b := open(t, v.url, 1280, 900)
	b.waits("[role=status]", "Live.")
	b.selects("10.118.110.2")
	b.waits("#way", "MiB of payload came to GPU memory (b.gpu0)")
	b.waits(".chart figcaption", "Payload a second", "TCP: sent, and not acknowledged", "The links that carried most")
	b.shoots("page-devmem.png", 1280)
	v.waits("stage: verify")
	b.waits("svg", "a.nic0", "a.gpu0", "b.nic0", "b.gpu0", "host memory", "sw0", "switch")
	b.selects("10.118.110.2")
	b.waits("#drawn .note", "queue 1, rule 2", "payload 128 MiB", "headers ")
	if n := b.number(`document.querySelectorAll(".way.payload").length`); n != 3 {
		t.Errorf("%v lines of payload: from the GPU, over the switch, to the GPU", n)
	}
	if n := b.number(`document.querySelectorAll(".way.header").length`); n != 3 {
		t.Errorf("%v lines of headers", n)
	}
	b.waits("#way", "Flow rule 2 leads it to receive queue 1", "is bound to GPU memory: the NIC splits headers off",
		"128 MiB of payload came to GPU memory (b.gpu0)", "headers came to host memory")
	b.waits(".map figcaption", "a.gpu0", "b.gpu0")
	b.waits(".map table", "a.nic0, bound for transmit", "b.nic0 queue 1", "(binding 1)", "free")
	b.waits(".events", "rule 2:", "binding")
	b.waits(".chart figcaption", "Payload a second", "TCP: sent, and not acknowledged", "The links that carried most")
	v.end(syscall.SIGINT)
	b.waits("[role=status]", "vnic has ended")
	b.waits("#way", "Flow rule 2") // the page still shows the way
}

func TestLostSegment(t *testing.T) {
	v := start(t, "run", "--guest", "inproc", "--mode", "devmem", "--size", "64M", "--loss", "1%", "--seed", "7",
		"--pause-at", "verify")
	v.waits("stage: verify")
	b := open(t, v.url, 1280, 900)
	b.selects("10.118.110.2")
	b.waits("#drawn .dropped text", "dropped: link-loss")
	b.waits("#way .bad", "link-loss", "sent again")
	b.waits("#way .hint", "link-loss: the link loses as it was told to")
	b.waits(`tr[data-flow*="> 10.118.110.2:"]`, "KiB")
	b.shoots("page-loss.png", 1280)
}

// The page reports a receiver that keeps its tokens.
func TestStalledReceiver(t *testing.T) {
	v := start(t, "run", "--guest", "inproc", "--lab", "pair", "--mode", "devmem", "--size", "64M", "--hold-tokens",
		"100000")
	v.waits("stage: transfer")
	// After 3 seconds without data the receiver would return its tokens; tokens=10s delays that by 10 seconds.
	v.set(fmt.Sprint(v.cmd.Process.Pid), "nic", "b.nic0", "tokens=10s")
	b := open(t, v.url, 1280, 900)
	b.selects("10.118.110.2")
	b.waits(".map table", "held: it was posted, and is not now")
	b.waits("#way .hint", "no-buffer: the receiver's queue had no buffers for them")
	b.waits("#way .bad", "None is posted: the receiver has at least", "until it returns tokens")
	b.waits("#way", "that it has not returned")
	b.shoots("page-stall.png", 1280)
}

func TestFault(t *testing.T) {
	v := start(t, "run", "--guest", "inproc", "--lab", "pair", "--mode", "devmem", "--size", "64M", "--pause-at",
		"transfer")
	v.waits("stage: transfer")
	b := open(t, v.url, 1280, 900)
	b.waits(".events", "rule 2:")
	if s := b.text(".events .fault"); s != "" {
		t.Errorf("a fault before there is one: %s", s)
	}
	v.set(fmt.Sprint(v.cmd.Process.Pid), "link", "a.nic0", "state=down")
	b.waits(".events .fault", "a.nic0", "down")
	b.do(chromedp.ScrollIntoView(chromedp.CSS("#events")))
	b.shoots("page-fault.png", 1280)
}

// The keyboard alone sorts the table, selects a flow, deselects it, and reaches the checkbox and the events.
func TestKeyboardAlone(t *testing.T) {
	v := start(t, "run", "--guest", "inproc", "--lab", "pair", "--mode", "devmem", "--size", "16M", "--pause-at", "verify")
	v.waits("stage: verify")
	b := open(t, v.url, 1280, 900)
	b.do(chromedp.WaitVisible(chromedp.CSS("tr[data-flow]")))
	tabTo(b, `document.activeElement.closest("th")?.textContent.startsWith("Payload")`)
	b.do(chromedp.KeyEvent(kb.Enter))
	if n := b.number(`document.querySelectorAll("th[aria-sort=ascending]").length`); n != 1 {
		t.Errorf("%v columns are in ascending order", n)
	}
	tabTo(b, `document.activeElement.matches("tr[data-flow]")`)
	if n := b.number(`parseFloat(getComputedStyle(document.activeElement).outlineWidth)`); n < 2 {
		t.Errorf("the focus is not seen: %v px", n)
	}
	first := b.text("tr[data-flow]:focus")
	b.do(chromedp.KeyEvent(kb.ArrowDown))
	if second := b.text("tr[data-flow]:focus"); second == "" || second == first {
		t.Errorf("arrow down leads from %q to %q", first, second)
	}
	b.do(chromedp.KeyEvent(kb.Enter))
	b.waits("tr[aria-selected=true]", "→ 10.118.110.2")
	b.waits("#way h3", "10.118.110.2")
	b.do(chromedp.KeyEvent(kb.Escape))
	b.waits("section", "Select a flow in the table")
	tabTo(b, `document.activeElement.matches("input[type=checkbox]")`)
	b.do(chromedp.KeyEvent(" "))
	b.waits("tbody", "not IP")
	tabTo(b, `document.activeElement.matches(".events")`)
}

func tabTo(b *tab, expression string) {
	b.t.Helper()
	for range 40 {
		b.do(chromedp.KeyEvent(kb.Tab))
		if b.number(fmt.Sprintf("(%s) ? 1 : 0", expression)) == 1 {
			return
		}
	}
	b.t.Fatalf("Tab never leads to where %s", expression)
}

// On a screen 360 pixels wide the page is no wider, and it is dark if the browser asks for that.
func TestNarrowAndDark(t *testing.T) {
	v := start(t, "run", "--guest", "inproc", "--lab", "pair", "--mode", "devmem", "--size", "64M", "--pause-at", "verify")
	v.waits("stage: verify")
	b := open(t, v.url, 360, 740, dark())
	b.selects("10.118.110.2")
	b.waits(".chart figcaption", "Payload a second")
	if w := b.number("document.scrollingElement.scrollWidth"); w > 360 {
		t.Errorf("the page is %v px wide", w)
	}
	if n := b.number(`getComputedStyle(document.body).backgroundColor.match(/\d+/)[0]`); n > 60 {
		t.Errorf("the background's red is %v: not dark", n)
	}
	b.shoots("page-narrow.png", 360)
	if w := b.number("document.scrollingElement.scrollWidth"); w > 360 {
		t.Errorf("with all in view the page is %v px wide", w)
	}
}

// A report is one file, below 2 MB, that a browser opens without a network.
func TestReport(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.html")
	c := exec.CommandContext(t.Context(), os.Getenv("VNIC"), "run", "--guest", "inproc", "--lab", "a3-high", "--mode",
		"devmem", "--size", "512M", "--report", file)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	st, err := os.Stat(file)
	if err != nil || st.Size() >= 2_000_000 {
		t.Fatalf("%v, %v", st, err)
	}
	b := open(t, "file://"+file, 1280, 900, offline())
	b.waits("[role=status]", "A report of a run that has ended.")
	b.waits("svg", "a.nic3", "b.gpu7")
	b.selects("10.118.112.2")
	b.waits("#drawn .note", "queue 1, rule 2", "payload ")
	b.waits("#way", "came to GPU memory (b.gpu4)")
	b.waits("output", "the whole run")
	b.do(chromedp.Focus(chromedp.CSS("#moment")), chromedp.KeyEvent(kb.ArrowLeft))
	b.waits("output", " s")
	b.do(chromedp.KeyEvent(kb.End))
	b.waits("output", "the whole run")
	b.shoots("page-report.png", 1280)
	for _, r := range b.requests {
		if !strings.HasPrefix(r, "file://"+file) {
			t.Errorf("it asks for %s", r)
		}
	}
	if len(b.requests) != 1 {
		t.Errorf("requests: %q", b.requests)
	}
}

// When vnic is killed, the page reports that. It shows the run of a new vnic at the same address.
func TestConnectionLost(t *testing.T) {
	v := start(t, "run", "--guest", "inproc", "--mode", "devmem", "--size", "16M", "--pause-at", "verify")
	v.waits("stage: verify")
	b := open(t, v.url, 1280, 900)
	b.waits("[role=status]", "Live.")
	v.end(syscall.SIGKILL)
	b.waits("[role=status]", "The connection is lost. Trying again.")
	addr := strings.Trim(strings.TrimPrefix(v.url, "http://"), "/")
	startAt(t, addr, "run", "--guest", "inproc", "--lab", "pair", "--mode", "devmem", "--size", "16M", "--pause-at",
		"verify")
	b.waits("[role=status]", "Live.")
	b.waits("svg", "a.gpu0")
}
