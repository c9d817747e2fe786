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

// UI shows what a command does, unless it is quiet: on a terminal as one progress line, elsewhere as plain lines, few
// enough for a log.
type UI struct {
	w     io.Writer
	tty   bool
	quiet bool // show notes and log lines only
	crlf  bool // w is a terminal, maybe one without control codes
	Times bool // begin notes with the time of day

	mu    sync.Mutex // guards the fields from given to since, and writes to w
	given bool       // a guest's program may use the terminal, which may be raw (Doing)
	doing string
	part  uint64 // quarters, or steps, of doing that are done
	bar   *progressbar.ProgressBar
	since time.Time // beginning of doing; zero: the line shows bar, or nothing
	stop  chan struct{}
	once  sync.Once
	wg    sync.WaitGroup
}

func New(w io.Writer, quiet bool) *UI {
	u := &UI{w: w, quiet: quiet, tty: IsTerminal(w), crlf: terminal.Is(w), stop: make(chan struct{})}
	if u.tty && !quiet {
		u.wg.Go(u.tick)
	}
	return u
}

// tick repaints the line of something with an unknown length.
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

// Write writes log lines in place of the progress line, which the next change or tick shows again below them.
func (u *UI) Write(b []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.clear()
	if _, err := io.WriteString(u.w, u.lines(string(b))); err != nil {
		return 0, err
	}
	return len(b), nil
}

// lines returns s. While a guest's program may use the terminal, which may be raw then, it replaces "\n" by "\r\n".
func (u *UI) lines(s string) string {
	if u.given && u.crlf {
		return strings.ReplaceAll(s, "\n", "\r\n")
	}
	return s
}

// Note shows a note, even if u is quiet, with its arguments by Plainly.
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

var doingWhat = map[string]string{
	"fetch": "looking for QEMU and a kernel", "gpu-memory": "allocating GPU memory", "boot": "booting guests",
	"setup": "setting up their NICs", "prepare": "filling GPU memory", "connect": "connecting",
	"verify": "digesting what arrived",
}

// Stage shows that a stage begins, except "transfer" on a terminal, where Progress shows it. Elsewhere than on a
// terminal it prints only stages of no round and of the first. At a stage after "setup" it calls spare.JobBegins.
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
	case u.bar != nil && u.doing == s.Mode && !(s.Stage == "verify" && s.Round == s.Rounds): // the bar covers all rounds
		u.bar.Describe(fmt.Sprintf("%s, round %d of %d", s.Mode, s.Round, s.Rounds))
	default:
		u.spin(what)
	}
}

// Measuring shows which of total measurements begins, after done others.
func (u *UI) Measuring(name string, done, total int) {
	what := fmt.Sprintf("%s (measurement %d of %d)", name, done+1, total)
	u.step(what, what)
}

// Sizes shows the progress through the rows (sizes) of an all-reduce's table: on a terminal the number of the row in
// progress, elsewhere how many are done.
func (u *UI) Sizes(mode string, done, total uint64) {
	line := ""
	if done > 0 {
		line = fmt.Sprintf("%s: size %d of %d", mode, done, total)
	}
	u.step(fmt.Sprintf("%s: size %d of %d", mode, min(done+1, total), total), line)
}

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

// Fetch shows the progress of a download or a build.
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

const fewest = 25

// count shows how many steps of an unknown number are done. Elsewhere than on a terminal it prints a line at fewest
// steps, and then when the number has doubled.
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

// Progress shows how many bytes of a transfer are done.
func (u *UI) Progress(mode string, done, total uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.quiet {
		u.advance(mode, done, total)
	}
}

// ClearLine removes the progress line, so that results can be printed.
func (u *UI) ClearLine() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.end()
}

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
		u.bar = progressbar.NewOptions64(int64(total), // starts no goroutine
			// The struct hides a file's Sync method, which progressbar would call: the sandbox forbids that.
			progressbar.OptionSetWriter(struct{ io.Writer }{u.w}), progressbar.OptionShowBytes(true),
			progressbar.OptionUseIECUnits(true), progressbar.OptionSetDescription(what),
			progressbar.OptionSetWidth(barWidth(u.w, what)), progressbar.OptionUseANSICodes(true))
		_ = u.bar.RenderBlank() // starts the bar's clock
	}
	_ = u.bar.Set64(int64(min(done, total)))
}

// barWidth returns how many columns a bar has beside the text what.
func barWidth(w io.Writer, what string) int {
	const most, least, beside = 24, 4, 36 // beside: for percent, rate and times
	if f, ok := w.(*os.File); ok {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			return min(most, max(least, columns-len(what)-beside))
		}
	}
	return most
}

// completed fills the bar, or prints a line if earlier lines have shown a part. It must not be called after a
// failure.
func (u *UI) completed() {
	switch {
	case u.bar != nil:
		_ = u.bar.Finish()
	case !u.tty && !u.quiet && u.part > 0 && u.part < 4: // part counts quarters
		u.part = 4
		fmt.Fprintf(u.w, "  %s: 100%%\n", u.doing)
	}
}

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

// Done removes the progress line, for good. It may be called again.
func (u *UI) Done() {
	u.mu.Lock()
	u.end()
	u.mu.Unlock()
	u.once.Do(func() { close(u.stop) })
	u.wg.Wait()
}

// Doing shows what the command does, if w is a terminal and u is not quiet. "" means that the guests' job begins: the
// progress line goes, a guest's program may use the terminal from now on, and Doing calls spare.JobBegins.
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

// Fetching makes o log to u and show its progress there. It returns the log, which has errors, or with verbose all
// messages from slog.LevelDebug on.
func (u *UI) Fetching(o *assets.Options, verbose bool) *slog.Logger {
	o.Log, o.Progress = Log(u, slog.LevelError, verbose), u.Fetch
	return o.Log
}

// Log returns a log of messages of at least this level, or with verbose of at least slog.LevelDebug.
func Log(w io.Writer, level slog.Level, verbose bool) *slog.Logger {
	if verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}

// TimeOfDay returns the local time, without the date.
func TimeOfDay() string { return time.Now().Format(time.TimeOnly) }
