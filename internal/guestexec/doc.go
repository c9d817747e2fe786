// Package guestexec runs a program in a guest with its streams on the host: the host receives standard output
// and standard error byte for byte, sends standard input, and gets the exit status or signal. With a
// terminal, the program leads a session on a pseudoterminal of the guest, whose size follows the host's
// terminal.
//
// It implements both ends: [Ops] registers the guest's operations with package agent, and [Run] calls them
// from the host. The guest sends only as much output as the host has room for (window), so that a slow writer
// on the host delays the program.
package guestexec

import (
	"errors"
	"io"

	"vnic.dev/vnic/internal/agent"
)

// Command is a program to run in a guest.
type Command struct {
	Path string   // in the guest; looked up in PATH of Env if it has no slash
	Args []string // including argv[0]
	Env  []string
	Dir  string // "": /

	// nil: end of file at once. Run waits for a pending Read; if Stdin is an io.Closer, Run closes it first.
	Stdin  io.Reader
	Stdout io.Writer // nil: discarded
	Stderr io.Writer

	TTY    bool        // the streams are a terminal, whose output goes to Stdout
	Size   Size        // of the terminal
	Resize <-chan Size // may be nil
}

// Size of a terminal, in characters.
type Size struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// Status is how a program ended.
type Status struct {
	Code   int `json:"code"`             // exit status, unless a signal ended it
	Signal int `json:"signal,omitempty"` // 0: none
}

// Exit returns the status as a shell does: after a signal 128 plus its number.
func (s Status) Exit() int {
	if s.Signal != 0 {
		return 128 + s.Signal
	}
	return s.Code
}

// ErrFlood means that a guest sent more output than the host had room for.
var ErrFlood = errors.New("the guest sends more output than it may")

const (
	window = 256 << 10 // bytes of an output stream in flight
	chunk  = 16 << 10  // bytes of output in a message
	input  = 8 << 10   // bytes of input in a request
)

var (
	opRun    = agent.NewOperation[runArgs, Status]("session")
	opInput  = agent.NewOperation[inputArgs, agent.None]("session-input")
	opCredit = agent.NewOperation[creditArgs, agent.None]("session-credit")
	opSize   = agent.NewOperation[sizeArgs, agent.None]("session-size")
)

const (
	stdout = 1
	stderr = 2
)

type (
	runArgs struct {
		ID   uint64   `json:"id"`
		Path string   `json:"path"`
		Args []string `json:"args"`
		Env  []string `json:"env"`
		Dir  string   `json:"dir,omitempty"`
		TTY  bool     `json:"tty,omitempty"`
		Size
	}
	inputArgs struct {
		ID   uint64 `json:"id"`
		Data []byte `json:"data,omitempty"`
		End  bool   `json:"end,omitempty"`
	}
	creditArgs struct {
		ID     uint64 `json:"id"`
		Stream int    `json:"stream"`
		Bytes  int    `json:"bytes"`
	}
	sizeArgs struct {
		ID uint64 `json:"id"`
		Size
	}
	report struct { // without stream and data: the program has started
		Stream int    `json:"stream,omitempty"`
		Data   []byte `json:"data,omitempty"`
	}
)
