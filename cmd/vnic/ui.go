package main

import (
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"vnic.dev/vnic/qemu"
)

// ui is what a user sees on stderr while something runs: on a terminal one progress line, elsewhere plain lines.
type ui struct {
	mu    sync.Mutex
	w     *os.File
	tty   bool
	on    bool
	bar   *progressbar.ProgressBar
	mode  string
	line  string
	since time.Time
	tenth uint64
}

func newUI(w *os.File, on bool) *ui {
	return &ui{w: w, on: on, tty: term.IsTerminal(int(w.Fd()))}
}

// Write lets log lines through, above the progress line.
func (u *ui) Write(b []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.clear()
	return u.w.Write(b)
}

func (u *ui) clear() {
	if u.bar != nil {
		_ = u.bar.Clear()
	}
}

func (u *ui) say(format string, args ...any) {
	u.clear()
	fmt.Fprintf(u.w, format+"\n", args...)
}

// stage begins a stage.
func (u *ui) stage(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.on {
		u.end()
		u.say("stage: %s", name)
	}
}

func (u *ui) note(format string, args ...any) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.say("note: "+format, args...)
}

// fetch shows the progress of a download.
func (u *ui) fetch(p qemu.Progress) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.on {
		return
	}
	line := p.Step + " " + p.What
	if line != u.line {
		u.line = line
		u.say("  %s", line)
	}
}

// progress shows how far a transfer is.
func (u *ui) progress(mode string, done, total uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.on {
		return
	}
	if !u.tty {
		if mode != u.mode {
			u.mode, u.tenth, u.since = mode, 0, time.Now()
		}
		if t := done * 10 / max(total, 1); t > u.tenth {
			u.tenth = t
			u.say("  %s: %d%%", mode, t*10)
		}
		return
	}
	if u.bar == nil || mode != u.mode {
		u.end()
		u.mode = mode
		u.bar = progressbar.NewOptions64(int64(total), progressbar.OptionSetWriter(u.w), progressbar.OptionShowBytes(true),
			progressbar.OptionUseIECUnits(true), progressbar.OptionSetDescription("  "+mode), progressbar.OptionSetWidth(30),
			progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(100*time.Millisecond))
	}
	_ = u.bar.Set64(int64(done))
}

func (u *ui) end() {
	if u.bar != nil {
		_ = u.bar.Clear()
		u.bar = nil
	}
}

func (u *ui) done() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.end()
}
