// Package guestexec runs a program in a guest with its streams on the host: the host receives standard output
// and standard error byte for byte, sends standard input, and gets the exit status or signal. With Command.TTY,
// the program's streams and its controlling terminal are a pseudoterminal of the guest, whose size follows
// Command.Resize.
//
// It implements both ends: [Ops] registers the guest's operations with package agent, and [Run] calls them
// from the host. The guest sends at most 256 KiB of each output stream that the host has not yet written, so that a
// slow Command.Stdout or Stderr delays the program.
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

	// Stdin is the program's input; nil: none, the program reads end of file. After the program's end Run closes Stdin
	// if it is an io.Closer, and waits for a pending Read.
	Stdin  io.Reader
	Stdout io.Writer // nil: discarded
	Stderr io.Writer // nil: discarded; unused with TTY

	TTY    bool        // the program's three streams are a terminal, whose output goes to Stdout
	Size   Size        // of the terminal at first
	Resize <-chan Size // new sizes of the terminal; may be nil
}

// Size is the size of a terminal, in characters.
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
	window = 256 << 10 // most bytes of an output stream that the guest has sent and the host has not written
	chunk  = 16 << 10  // most bytes of output in a message
	input  = 8 << 10   // most bytes of input in a request
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
