package uitest

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

var screenshots = flag.String("screenshots", "", "write pictures of the page to this directory")

// limit bounds each wait. A loaded machine needs much of it.
const limit = 2 * time.Minute

// browser is a page in a browser.
type browser struct {
	t      *testing.T
	ctx    context.Context
	origin string

	mu sync.Mutex
	// problems are requests to other origins, and what the console and the browser complain about.
	problems []string
	// lossy says that requests may fail, because the test has stopped what answers them.
	lossy bool
}

// openBrowser opens a link in a new browser, which ends with the test.
func openBrowser(t *testing.T, link string) *browser {
	t.Helper()
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("the test needs Debian's package chromium: apt-get install chromium, or make ui as root")
	}
	parsed, err := url.Parse(link)
	if err != nil {
		t.Fatal(err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium),
		chromedp.UserDataDir(t.TempDir()), chromedp.WSURLReadTimeout(limit))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // chromium refuses to sandbox for root
	}
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // it waits for the browser's end
		cancel()
	})
	b := &browser{t: t, ctx: ctx, origin: parsed.Scheme + "://" + parsed.Host}
	// The browser ends with the context of the first action, which has no time limit for that reason.
	if err := chromedp.Listen(ctx, b.listen); err != nil {
		t.Fatal(err)
	}
	call(b, network.Enable, network.EnableParams{})
	call(b, log.Enable, cdp.Empty{})
	call(b, runtime.Enable, cdp.Empty{})
	// A dialog would keep the page from going on.
	call(b, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{
		Source: "window.alert = (text) => console.error('alert: ' + text)",
	})
	b.size(1280, 900)
	b.run("opening "+link, chromedp.Navigate(link))
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, problem := range b.problems {
			t.Error(problem)
		}
	})
	return b
}

func (b *browser) listen(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		if !strings.HasPrefix(e.Request.URL, b.origin+"/") {
			b.problems = append(b.problems, "a request leaves the origin: "+e.Request.URL)
		}
		if e.Request.Method != "GET" {
			b.problems = append(b.problems, "a request is no GET: "+e.Request.Method+" "+e.Request.URL)
		}
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			b.problems = append(b.problems, fmt.Sprintf("console: %s %s", e.Type, textOf(e.Args)))
		}
	case *runtime.EventExceptionThrown:
		b.problems = append(b.problems, fmt.Sprintf("exception: %+v", e.ExceptionDetails))
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError && !(b.lossy && e.Entry.Source == log.EntrySourceNetwork) {
			b.problems = append(b.problems, "browser: "+e.Entry.Text+" "+e.Entry.URL)
		}
	}
}

// textOf returns what a call of the console has written.
func textOf(args []*runtime.RemoteObject) string {
	var text strings.Builder
	for _, arg := range args {
		text.Write(arg.Value)
		text.WriteString(arg.Description + " ")
	}
	return text.String()
}

func (b *browser) setLossy(lossy bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lossy = lossy
}

// run runs actions. what is said of an error.
func (b *browser) run(what string, actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, limit)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
}

// get returns the value of an action.
func get[T any](b *browser, what string, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, limit)
	defer cancel()
	value, err := chromedp.Run(ctx, action)
	if err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
	return value
}

// call returns the answer to a command of the browser's protocol.
func call[P, R any](b *browser, command cdp.Command[P, R], params P) R {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, limit)
	defer cancel()
	answer, err := chromedp.Call(ctx, command, params)
	if err != nil {
		b.t.Fatalf("%s: %v", command.Method, err)
	}
	return answer
}

// eval returns the value of an expression in the page.
func eval[T any](b *browser, expression string) T {
	b.t.Helper()
	return get(b, expression, chromedp.Evaluate[T](expression))
}

// quote returns a text as a string of JavaScript.
func quote(text string) string {
	quoted, err := json.Marshal(text)
	if err != nil {
		panic(err) // every string can be encoded
	}
	return string(quoted)
}

// await waits until an expression in the page is true.
func (b *browser) await(what, expression string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, limit)
	defer cancel()
	promise := "new Promise((resolve) => { const look = () => (" + expression + ") ? resolve() : setTimeout(look, 50); look(); })"
	if _, err := chromedp.Run(ctx, chromedp.Evaluate[chromedp.Void](promise, chromedp.EvalAwaitPromise)); err != nil {
		b.t.Fatalf("%s: %v: the page has\n%s", what, err, eval[string](b, "document.body.innerText"))
	}
}

// awaitText waits until the page has a text.
func (b *browser) awaitText(text string) {
	b.t.Helper()
	b.await("waiting for "+text, "document.body.innerText.includes("+quote(text)+")")
}

func (b *browser) size(width, height int64) {
	b.t.Helper()
	b.run("setting the size", chromedp.EmulateViewport(width, height))
}

func (b *browser) scheme(name string) {
	b.t.Helper()
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: name},
		{Name: "prefers-reduced-motion", Value: "reduce"},
	}})
}

// press presses a key.
func (b *browser) press(key string) {
	b.t.Helper()
	b.run("pressing a key", chromedp.KeyEvent(key))
}

// tabTo presses the tabulator until the element with a text has the focus, which must be visible.
func (b *browser) tabTo(text string) {
	b.t.Helper()
	for range 200 {
		b.press(kb.Tab)
		if eval[string](b, "document.activeElement.textContent") == text {
			if eval[bool](b, "getComputedStyle(document.activeElement).outlineStyle === 'none'") {
				b.t.Errorf("nobody sees that %q has the focus", text)
			}
			return
		}
	}
	b.t.Fatalf("the tabulator does not reach %q", text)
}

// goTo opens a view by its address.
func (b *browser) goTo(hash, heading string) {
	b.t.Helper()
	eval[chromedp.Void](b, "void (location.hash = "+quote(hash)+")")
	b.await("opening "+hash, "document.querySelector('h2')?.textContent === "+quote(heading))
}

// picture writes a picture of the whole page, if somebody wants it.
func (b *browser) picture(name string) {
	b.t.Helper()
	if *screenshots == "" {
		return
	}
	data := get(b, "taking a picture", chromedp.FullScreenshot(100))
	if err := os.MkdirAll(*screenshots, 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(*screenshots, name+".png"), data, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// lowContrast is a function that returns the texts whose contrast with what is behind them is less than 4.5, and
// the number of texts.
const lowContrast = `(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const channels = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const background = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const color = channels(getComputedStyle(e).backgroundColor);
      if (color[3] === 255) return color;
      if (color[3] !== 0) throw new Error("a background that is half transparent");
    }
    return [255, 255, 255];
  };
  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; node = walker.nextNode();) {
    const element = node.parentElement;
    if (node.textContent.trim() === "" || !element.checkVisibility() || element.closest("noscript, .unseen, option")) continue;
    for (const [color, text] of [[getComputedStyle(element).color, node.textContent],
        [getComputedStyle(element, "::before").color, "before " + node.textContent]]) {
      const [a, b] = [luminance(channels(color)), luminance(background(element))].sort((x, y) => y - x);
      texts.push({ text, ratio: (a + 0.05) / (b + 0.05), color });
    }
  }
  return { low: texts.filter((t) => t.ratio < 4.5), all: texts.length };
})()`

// checkLooks checks the contrast of all texts, light and dark, and that nothing is wider than the screen; it
// takes a picture of each.
func (b *browser) checkLooks(name string) {
	b.t.Helper()
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		for _, width := range []int64{1280, 1000, 400} {
			b.size(width, 900)
			found := eval[struct {
				Low []struct {
					Text, Color string
					Ratio       float64
				}
				All int
			}](b, lowContrast)
			for _, text := range found.Low {
				b.t.Errorf("%s, %s: the contrast of %q (%s) is %.2f", name, scheme, text.Text, text.Color, text.Ratio)
			}
			if found.All < 10 {
				b.t.Errorf("%s: only %d texts were found", name, found.All)
			}
			if wide := eval[int64](b, "document.documentElement.scrollWidth"); wide > width {
				b.t.Errorf("%s: the page is %d pixels wide on a screen of %d", name, wide, width)
			}
			if width != 1000 { // which looks like one of the others
				b.picture(fmt.Sprintf("%s-%s-%d", name, scheme, width))
			}
		}
	}
	b.scheme("light")
	b.size(1280, 900)
}
