package show

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/spare"
	"vnic.dev/vnic/internal/terminal"
)

// UI is what a user sees on stderr while something runs: on a terminal one line, which goes away,
// elsewhere plain lines, few enough for a log.
type UI struct {
	w     io.Writer
	tty   bool
	quiet bool // nothing but notes and what is logged
	crlf  bool // w is a terminal
	Times bool // notes have the time of day, as what is logged

	mu    sync.Mutex // guards what follows, and what is written
	given bool       // the terminal is a guest's program's: it may be raw
	doing string     // what the line is about
	part  uint64     // of it, in quarters, or how many steps of it are done
	bar   *progressbar.ProgressBar
	since time.Time     // when doing began; zero: bar shows it
	stop  chan struct{} // closed by done
	once  sync.Once     // does that
	wg    sync.WaitGroup
}

func New(w io.Writer, quiet bool) *UI {
	u := &UI{w: w, quiet: quiet, tty: IsTerminal(w), crlf: terminal.Is(w), stop: make(chan struct{})}
	if u.tty && !quiet {
		u.wg.Go(u.tick)
	}
	return u
}

// tick keeps the time of what has no known length.
func (u *UI) tick() {
	t := time.NewTicker(200 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-u.stop:
			return
		case <-t.C:
			u.mu.Lock()
			u.paint()
			u.mu.Unlock()
		}
	}
}

// paint draws the line of something without a known length.
func (u *UI) paint() {
	if u.since.IsZero() {
		return
	}
	fmt.Fprintf(u.w, "\r\x1b[K%s", u.doing)
	if u.part > 0 {
		fmt.Fprintf(u.w, ": %d steps", u.part)
	}
	if s := time.Since(u.since) / time.Second; s > 0 {
		fmt.Fprintf(u.w, " %d s", s)
	}
}

// Write lets log lines through, above the progress line.
func (u *UI) Write(b []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.clear()
	if _, err := io.WriteString(u.w, u.lines(string(b))); err != nil {
		return 0, err
	}
	return len(b), nil
}

// lines has lines begin at the left of a raw terminal, too.
func (u *UI) lines(s string) string {
	if u.given && u.crlf {
		return strings.ReplaceAll(s, "\n", "\r\n")
	}
	return s
}

// Note says what a user should know, whatever else is silent. Its arguments are shown plain.
func (u *UI) Note(format string, args ...any) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.clear()
	text := Plainly(format, args...)
	if u.Times {
		text = TimeOfDay() + " " + text
	}
	_, _ = io.WriteString(u.w, u.lines(Yellow(u.w, "note:")+" "+text+"\n"))
}

// doingWhat is what a stage's name means, on a terminal.
var doingWhat = map[string]string{
	"fetch": "looking for QEMU and a kernel", "gpu-memory": "allocating GPU memory", "boot": "booting guests",
	"setup": "setting up their NICs", "prepare": "filling GPU memory", "connect": "connecting",
	"verify": "digesting what arrived",
}

// Stage begins a stage. Elsewhere than on a terminal, only a mode's first round says so.
func (u *UI) Stage(s session.Step) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch s.Stage {
	case "fetch", "gpu-memory", "boot", "setup":
	default:
		spare.JobBegins()
	}
	if s.Stage != "verify" && s.Round <= 1 || s.Stage == "verify" && s.Round == s.Rounds {
		u.completed()
	}
	what := doingWhat[s.Stage]
	if s.Mode != "" {
		what = s.Mode + ": " + what
	}
	switch {
	case u.quiet:
	case !u.tty && s.Round <= 1:
		fmt.Fprintf(u.w, "stage: %s\n", s.Stage)
	case !u.tty, s.Stage == "transfer":
	case u.bar != nil && u.doing == s.Mode && !(s.Stage == "verify" && s.Round == s.Rounds): // the bar is about all rounds
		u.bar.Describe(fmt.Sprintf("%s, round %d of %d", s.Mode, s.Round, s.Rounds))
	default:
		u.spin(what)
	}
}

// Measuring says which of several measurements is under way.
func (u *UI) Measuring(name string, done, total int) {
	what := fmt.Sprintf("%s (measurement %d of %d)", name, done+1, total)
	u.step(what, what)
}

// Sizes shows how many rows of an all-reduce's table are there.
func (u *UI) Sizes(mode string, done, total uint64) {
	line := ""
	if done > 0 {
		line = fmt.Sprintf("%s: size %d of %d", mode, done, total)
	}
	u.step(fmt.Sprintf("%s: size %d of %d", mode, min(done+1, total), total), line)
}

// step shows what is under way, or elsewhere than on a terminal a line, if it is not "".
func (u *UI) step(what, line string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.quiet:
	case u.tty:
		u.spin(what)
	case line != "":
		fmt.Fprintf(u.w, "  %s\n", line)
	}
}

// Fetch shows a download.
func (u *UI) Fetch(p assets.Progress) {
	u.mu.Lock()
	defer u.mu.Unlock()
	what := p.Step + " " + p.What
	switch {
	case u.quiet:
	case p.Total > 0:
		u.advance(what, uint64(p.Done), uint64(p.Total))
	case p.Done > 0:
		u.count(what, uint64(p.Done))
	case u.tty:
		u.spin(what)
	case what != u.doing:
		u.completed()
		u.doing, u.part = what, 0
		fmt.Fprintf(u.w, "  %s\n", what)
	}
}

// fewest is the first number of steps that is a line of its own.
const fewest = 25

// count shows how many steps of an unknown number are done: elsewhere than on a terminal
// at fewest, twice as many, and so on.
func (u *UI) count(what string, done uint64) {
	switch {
	case u.tty:
		if what != u.doing || u.since.IsZero() {
			u.spin(what)
		}
		u.part = done
	case what != u.doing:
		u.completed()
		u.doing, u.part = what, 0
	case done >= max(2*u.part, fewest):
		u.part = done
		fmt.Fprintf(u.w, "  %s: %d steps\n", what, done)
	}
}

// Progress shows how far a transfer is.
func (u *UI) Progress(mode string, done, total uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.quiet {
		u.advance(mode, done, total)
	}
}

// ClearLine takes the progress line away before results.
func (u *UI) ClearLine() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.end()
}

// advance shows how far something with a known end is.
func (u *UI) advance(what string, done, total uint64) {
	if !u.tty {
		if what != u.doing {
			u.completed()
			u.doing, u.part = what, 0
		}
		if part := done * 4 / max(total, 1); part > u.part {
			u.part = part
			fmt.Fprintf(u.w, "  %s: %d%%\n", what, part*25)
		}
		return
	}
	if u.bar == nil || what != u.doing {
		u.completed()
		u.end()
		u.doing = what
		u.bar = progressbar.NewOptions64(int64(total), // it has no goroutine of its own
			// It would have the kernel synchronise a file, which a sandbox refuses.
			progressbar.OptionSetWriter(struct{ io.Writer }{u.w}), progressbar.OptionShowBytes(true),
			progressbar.OptionUseIECUnits(true), progressbar.OptionSetDescription(what),
			progressbar.OptionSetWidth(barWidth(u.w, what)), progressbar.OptionUseANSICodes(true))
		_ = u.bar.RenderBlank() // its clock starts
	}
	_ = u.bar.Set64(int64(min(done, total)))
}

// barWidth is how long a bar is beside what, in columns: as it fits a terminal.
func barWidth(w io.Writer, what string) int {
	const most, least, beside = 24, 4, 36 // beside it are percent, rate and times
	if f, ok := w.(*os.File); ok {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			return min(most, max(least, columns-len(what)-beside))
		}
	}
	return most
}

// completed says of what had a known end that it has come to it: by a bar that is full, or where lines have told of
// parts of it. Of a failure it is not called.
func (u *UI) completed() {
	switch {
	case u.bar != nil:
		_ = u.bar.Finish()
	case !u.tty && !u.quiet && u.part > 0 && u.part < 4: // quarters
		u.part = 4
		fmt.Fprintf(u.w, "  %s: 100%%\n", u.doing)
	}
}

// spin shows that something of unknown length is under way, and since when.
func (u *UI) spin(what string) {
	u.end()
	u.doing, u.since, u.part = what, time.Now(), 0
	u.paint()
}

func (u *UI) clear() {
	if u.tty && (u.bar != nil || !u.since.IsZero()) {
		fmt.Fprint(u.w, "\r\x1b[K")
	}
}

func (u *UI) end() {
	u.clear()
	u.bar, u.since = nil, time.Time{}
}

// Done takes the progress line away, for good. Once is enough, and more is no mistake.
func (u *UI) Done() {
	u.mu.Lock()
	u.end()
	u.mu.Unlock()
	u.once.Do(func() { close(u.stop) })
	u.wg.Wait()
}

// Doing shows what is being done; "": nothing any more, as the guests' job begins.
func (u *UI) Doing(what string) {
	if what == "" {
		spare.JobBegins()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.given = what == ""
	switch {
	case what == "":
		u.end()
	case u.tty && !u.quiet:
		u.spin(what)
	}
}

// Fetching makes o log to u and show its progress there, and returns the log: of errors, or verbose: of everything.
func (u *UI) Fetching(o *assets.Options, verbose bool) *slog.Logger {
	o.Log, o.Progress = Log(u, slog.LevelError, verbose), u.Fetch
	return o.Log
}

// Log returns a log of what is at least as grave as level; verbose: of everything.
func Log(w io.Writer, level slog.Level, verbose bool) *slog.Logger {
	if verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}

// TimeOfDay is how messages of commands that run for long begin.
func TimeOfDay() string { return time.Now().Format(time.TimeOnly) }
