package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/proc"
	"vnic.dev/vnic/internal/version"
)

// A RunError has at most so many lines of the console (more after a kernel panic) and of QEMU's output.
const (
	consoleLines = 12
	stderrLines  = 8
)

// kernelNeeds is advice for a user's kernel with which init has not reported.
const kernelNeeds = "the kernel must have initramfs, devtmpfs, ELF programs, PCI, " +
	"and a serial port (8250) or virtio's console"

// grace limits the times for QMP commands of the method command, for QEMU's exit and for its last output; tests change
// it.
var grace = limits.QEMUEnd

// command runs a QMP command without arguments. It may wait for another command's end; its own command has grace from
// the call on.
func (m *Machine) command(name string) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(context.Background(), grace.Here())
	defer cancel()
	return m.qmp.do(ctx, name, nil)
}

func (m *Machine) event(e qmpEvent) {
	switch e.Event {
	case eventShutdown:
		m.shutdown = e.Data.Reason
	case eventStop:
		m.checkStatus()
	case eventDeleted:
		m.unplugged(e.Data.Device, nil)
	case eventKept:
		m.unplugged(e.Data.Device, ErrKept)
	}
}

// internalError is a status of QEMU (qapi/run-state.json, RunState).
const internalError = "internal-error"

// checkStatus asks QEMU for its status, and sets m.cause if QEMU has stopped the guest after an error or a guest's
// kernel panic.
func (m *Machine) checkStatus() {
	var s struct{ Status string }
	if r, err := m.command(commandStatus); err != nil || json.Unmarshal(r, &s) != nil {
		return
	}
	switch s.Status {
	case internalError, "io-error", "guest-panicked":
		m.cause, m.detail = ErrStopped, s.Status
	}
}

// end ends QEMU: by QMP; if QEMU has not ended after grace, by SIGTERM; if it has not ended after grace again, by
// SIGKILL. After ErrSilent it sends SIGTERM and at once SIGKILL. It waits for QEMU's end, unless SIGKILL fails.
func (m *Machine) end() {
	if m.cause == ErrSilent { // QEMU may not answer by QMP
		m.child.End(0)
		return
	}
	_, _ = m.command(commandQuit)
	if !m.child.Ends(grace.Here()) {
		m.log.Warn("QEMU does not end by itself", "machine", m.name)
		m.child.End(grace.Here())
	}
}

// finish reads the rest of the console, closes this process's connections to QEMU, and sets m.err to the run's result.
// QEMU has ended, or could not be ended.
func (m *Machine) finish() {
	_ = m.conIn.SetReadDeadline(time.Now().Add(grace.Here())) // a child of QEMU may hold the other end
	m.conRead.Wait()
	_ = m.conIn.Close()
	_ = m.agent.Close()
	m.closeNet()
	_ = m.qmp.conn.SetReadDeadline(time.Now().Add(grace.Here()))
	for e := range m.qmp.events { // until qmp.read ends
		if e.Event == eventShutdown {
			m.shutdown = e.Data.Reason
		}
	}
	_ = m.qmp.conn.Close()
	m.err = m.verdict()
}

func (m *Machine) closeNet() {
	for _, b := range m.net {
		b.close()
	}
}

func (m *Machine) verdict() error {
	console := m.con.bytes()
	e := &RunError{Name: m.name, Detail: m.detail, Console: proc.LastLines(console, consoleLines)}
	booted := false
	select {
	case <-m.agent.Booted():
		booted = true
	default:
	}
	var died *agent.PanicError
	switch {
	case errors.Is(m.cause, errClosed) && errors.As(m.agent.Err(), &died):
		return m.agentEnded(died)
	case errors.Is(m.cause, errClosed):
		return nil
	case errors.As(m.cause, new(version.Error)):
		return &RunError{Name: m.name, Err: m.cause}
	case m.cause != nil:
		e.Err = m.cause
	case panicLine(console) != "":
		e.Err, e.Detail, e.Console = ErrKernelPanic, panicLine(console), panicLines(console)
	case m.shutdown == "guest-reset":
		e.Err = ErrReset
	case errors.As(m.agent.Err(), &died):
		return m.agentEnded(died)
	case m.shutdown == "guest-shutdown" && booted:
		return nil
	case m.shutdown == "guest-shutdown":
		e.Err = ErrPowerOff
	default:
		e.Err, e.Detail = ErrExited, m.status()
	}
	if !booted && m.kernel.Source == assets.SourceGiven &&
		(e.Err == ErrKernelPanic || e.Err == ErrPowerOff || e.Err == ErrNoInit) {
		e.Detail = strings.TrimPrefix(e.Detail+": "+kernelNeeds, ": ")
	}
	e.Stderr = proc.LastLines(m.stderr.Bytes(), 1<<10)
	if e.KVM = m.accel == AccelKVM && e.ofKVM(booted); e.KVM && m.record != nil {
		e.record = m.record(e)
	}
	if d := unknownDevice(e.Stderr); d != "" && !booted {
		return &assets.Missing{What: m.name + ": " + m.qemu, Err: fmt.Errorf("%w: %s", ErrNoDevice, d),
			Fix: "give another (--qemu), or none, and one is fetched"}
	}
	if n := len(e.Stderr); n > stderrLines { // the first lines may name the cause
		e.Stderr = append(e.Stderr[:stderrLines/2:stderrLines/2], e.Stderr[n-stderrLines/2:]...)
	}
	return e
}

// ofKVM reports whether KVM may be the cause, if the guest ran with KVM. If QEMU exits with status 1 before the guest
// has booted, and its messages are not about KVM, its arguments count as wrong.
func (e *RunError) ofKVM(booted bool) bool {
	blamesKVM := slices.ContainsFunc(e.Stderr, OfKVM)
	switch e.Err {
	case ErrStopped:
		return blamesKVM || e.Detail == internalError
	case ErrNoInit, ErrSilent:
		return !booted
	case ErrExited:
		return blamesKVM || !booted && (len(e.Stderr) == 0 || e.Detail != "exit status 1")
	}
	return false
}

// kvmWords match QEMU's messages about KVM (as in accel/kvm/kvm-all.c, system/vl.c). The word "kvm" does not suffice: a
// file's name may have it.
var kvmWords = regexp.MustCompile(`KVM internal error|KVM: |KVM kernel module|requires KVM|kvm run failed|` +
	`initialize kvm|-accel kvm|\bKVM_[A-Z]|\bkvm_[a-z_]+:|accel/kvm/`)

// OfKVM reports whether a line of QEMU's output is about KVM.
func OfKVM(line string) bool { return kvmWords.MatchString(line) }

var deviceLine = regexp.MustCompile(`'([^']*)' is not a valid device model name`)

// unknownDevice returns the device that this QEMU does not have, according to its output; "": none.
func unknownDevice(stderr []string) string {
	for _, l := range stderr {
		if d := deviceLine.FindStringSubmatch(l); d != nil {
			return d[1]
		}
	}
	return ""
}

// agentEnded returns the error of an agent that has failed, with advice if the agent could not load a module and the
// kernel is the user's.
func (m *Machine) agentEnded(p *agent.PanicError) error {
	why, ok := strings.CutPrefix(p.Output, "module ")
	if ok && p.Status == "init" && m.kernel.Source == assets.SourceGiven {
		return &assets.Missing{What: m.name + ": kernel " + m.kernel.Version,
			Err: fmt.Errorf("%w %s", ErrModule, agent.Plain(strings.TrimSpace(why))),
			Fix: "give the modules of this very kernel (--modules), packed as it unpacks them itself or not at all"}
	}
	return &RunError{Name: m.name, Err: fmt.Errorf("%w: %w", ErrAgent, p)}
}

func (m *Machine) status() string {
	select {
	case <-m.child.Done():
	default:
		return "it cannot be ended"
	}
	if err := m.child.Err(); err != nil {
		return strings.TrimSpace(err.Error())
	}
	return "exit status 0"
}

// Errors inside an *assets.Missing.
var (
	ErrNoMemory = errors.New("not enough memory")
	ErrNoDevice = errors.New("this QEMU lacks a device")
	ErrModule   = errors.New("the guest's kernel does not load module")
)

// Errors of Machine.UnplugNIC and Machine.UnplugGPU: why the device was not removed.
var (
	ErrFixed = errors.New("it cannot be taken out of this machine")
	ErrKept  = errors.New("the guest did not release it")
)

// MemoryError returns err; or, if err says that memory, space or the allowed size of files is lacking, an
// *assets.Missing whose What is the parameter what, with the cause and advice.
func MemoryError(what string, err error) error {
	if !errors.Is(err, unix.ENOMEM) && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EFBIG) {
		return err
	}
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		err = p.Err
	}
	return &assets.Missing{What: what, Err: fmt.Errorf("%w: %w", ErrNoMemory, err),
		Fix: "free some, or raise the limit of files (ulimit -f) or of the container"}
}

// Errors inside a *RunError.
var (
	ErrExited      = errors.New("QEMU ended early")
	ErrKernelPanic = errors.New("guest kernel panic")
	ErrReset       = errors.New("guest reset itself")
	ErrNoInit      = errors.New("guest's init did not report in time")
	ErrSilent      = errors.New("guest printed nothing")
	ErrPowerOff    = errors.New("guest powered off before its init reported")
	ErrTimeLimit   = errors.New("time limit of the run reached")
	ErrStopped     = errors.New("QEMU stopped the guest")
	ErrAgent       = errors.New("guest does not answer any more")
)

// RunError is the error of a failed run.
type RunError struct {
	Name    string // of the machine
	Err     error  // one of the errors above, perhaps wrapped, or another one, as a context's
	Detail  string
	Console []string // last lines; after a kernel panic the lines that explain it
	Stderr  []string // lines of QEMU's last 8 KiB of output: all, or the first and the last ones
	// KVM: KVM ran the guest and may be the cause; the guest may run with TCG.
	KVM bool

	record *record // for Record; nil: none
}

// Unwrap returns Err.
func (e *RunError) Unwrap() error { return e.Err }

func (e *RunError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %v", e.Name, e.Err)
	if e.Detail != "" {
		b.WriteString(": " + e.Detail)
	}
	console := "last lines of its console"
	if errors.Is(e.Err, ErrKernelPanic) {
		console = "its kernel said"
	}
	for _, part := range []struct {
		name  string
		lines []string
	}{{"QEMU said", e.Stderr}, {console, e.Console}} {
		if len(part.lines) > 0 {
			fmt.Fprintf(&b, "\n%s:\n\t%s", part.name, strings.Join(part.lines, "\n\t"))
		}
	}
	return b.String()
}
