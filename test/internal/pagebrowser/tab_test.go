//go:build browser

package pagebrowser

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

type tab struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	requests []string // URLs that the page requested, without data: URLs
	wrong    []string // exceptions, and errors that scripts wrote to the console
}

// open opens url in a browser that ends with the test. Exceptions and console errors of the page's scripts fail the
// test when it ends.
func open(t *testing.T, url string, width, height int64, more ...chromedp.Action[chromedp.Void]) *tab {
	t.Helper()
	o := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(os.Getenv("CHROMIUM")), chromedp.NoSandbox,
		chromedp.Env("LD_LIBRARY_PATH="+os.Getenv("CHROMIUM_LIBRARIES")), chromedp.Flag("force-prefers-reduced-motion", true))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), o...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 2*time.Minute)
	t.Cleanup(cancel)
	b := &tab{t: t, ctx: ctx}
	if err := chromedp.Listen(ctx, b.hear); err != nil {
		t.Fatal(err)
	}
	b.do(call(network.Enable, network.EnableParams{}), chromedp.EmulateViewport(width, height))
	b.do(more...)
	b.do(chromedp.Navigate(url), chromedp.WaitVisible(chromedp.CSS("h1")))
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, w := range b.wrong {
			t.Errorf("the page: %s", w)
		}
	})
	return b
}

func (b *tab) hear(e any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := e.(type) {
	case *network.EventRequestWillBeSent:
		if !strings.HasPrefix(e.Request.URL, "data:") {
			b.requests = append(b.requests, e.Request.URL)
		}
	case *runtime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if x := e.ExceptionDetails.Exception; x != nil {
			text += " " + x.Description
		}
		b.wrong = append(b.wrong, text)
	case *runtime.EventConsoleAPICalled:
		if e.Type == "error" {
			b.wrong = append(b.wrong, fmt.Sprintf("console: %+v", e.Args))
		}
	}
}

func (b *tab) do(a ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, a...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *tab) text(selector string) string {
	b.t.Helper()
	return evaluate[string](b,
		fmt.Sprintf(`[...document.querySelectorAll(%q)].map((e) => e.textContent).join("\n")`, selector))
}

func (b *tab) number(expression string) float64 {
	b.t.Helper()
	return evaluate[float64](b, fmt.Sprintf("Number(%s)", expression))
}

func evaluate[T any](b *tab, expression string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatal(err)
	}
	return v
}

// call returns an action that calls a command of the browser's protocol and drops its result.
func call[P, R any](c cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, c, params)
		return err
	})
}

// waits waits until the text of the elements that selector selects, taken together, is not empty and has all words. The
// test fails after 30 seconds.
func (b *tab) waits(selector string, words ...string) {
	b.t.Helper()
	limit := time.Now().Add(30 * time.Second)
	for {
		s := b.text(selector)
		missing := ""
		for _, w := range words {
			if !strings.Contains(s, w) {
				missing = w
			}
		}
		if missing == "" && s != "" {
			return
		}
		if time.Now().After(limit) {
			b.t.Fatalf("%s has no %q: %s", selector, missing, s)
		}
		b.do(chromedp.Sleep(50 * time.Millisecond))
	}
}

// selects clicks the first flow to an address, up to five times, until the page shows its way.
func (b *tab) selects(to string) {
	b.t.Helper()
	row := fmt.Sprintf(`tr[data-flow*="> %s:"]`, to)
	b.do(chromedp.WaitVisible(chromedp.CSS(row)))
	for try := 0; try < 5 && !strings.Contains(b.text("#way h3"), to); try++ {
		// While the page grows, the row may move away from the pointer.
		b.do(chromedp.Click(chromedp.CSS(row)))
		for wait := 0; wait < 40 && !strings.Contains(b.text("#way h3"), to); wait++ {
			b.do(chromedp.Sleep(50 * time.Millisecond))
		}
	}
	b.waits("#way h3", to)
}

// tallest is the maximum height of a picture, in pixels.
const tallest = 2200

// shoots saves a picture of the page in the folder SHOTS, if that variable is set.
func (b *tab) shoots(name string, width int64) {
	b.t.Helper()
	if os.Getenv("SHOTS") == "" {
		return
	}
	height := min(tallest, int64(b.number("document.documentElement.scrollHeight")))
	b.do(chromedp.EmulateViewport(width, height), chromedp.Sleep(300*time.Millisecond))
	png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err == nil {
		png, err = smaller(png)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(os.Getenv("SHOTS"), name), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

func dark() chromedp.Action[chromedp.Void] {
	return call(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: "dark"}, {Name: "prefers-reduced-motion", Value: "reduce"}}})
}

func offline() chromedp.Action[chromedp.Void] {
	return call(network.EmulateNetworkConditionsByRule, network.EmulateNetworkConditionsByRuleParams{
		MatchedNetworkConditions: []*network.Conditions{{Offline: true}}})
}
