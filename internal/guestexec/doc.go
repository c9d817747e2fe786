// Package guestexec runs a program in a guest with its streams on the host: the host receives
// standard output and standard error byte for byte, sends standard input, and gets the exit status
// or signal. With a terminal, the program leads a session on a pseudoterminal of the guest, whose
// size follows the host's terminal.
//
// It implements both ends: Ops registers the guest's operations with package agent, and Run calls
// them from the host. Output is sent as progress of the operation "session". The guest sends only
// as much as the host has room for (window). The host allows more by the operation "session-credit"
// after its writer has taken bytes: a writer that waits stops the program instead of filling
// memory. The host sends input one request at a time, which the guest answers when the program's
// pipe or terminal has taken the input.
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
	Dir  string // "" = /

	// If Stdin is nil, the program reads end of file at once. Before Run returns, it waits for a pending
	// Read; if Stdin is an io.Closer, Run closes it first.
	Stdin  io.Reader
	Stdout io.Writer // nil: discarded
	Stderr io.Writer

	TTY    bool        // all streams use a terminal, whose output goes to Stdout
	Size   Size        // of the terminal
	Resize <-chan Size // changes of the size; may be nil
}

// Size of a terminal, in characters.
type Size struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// Status is how a program ended.
type Status struct {
	Code   int `json:"code"`             // exit status, unless a signal ended it
	Signal int `json:"signal,omitempty"` // 0 = none
}

// Exit returns the status as a shell does: 128 plus the signal's number after a signal.
func (s Status) Exit() int {
	if s.Signal != 0 {
		return 128 + s.Signal
	}
	return s.Code
}

// ErrFlood is the error for a guest that sent more output than the host had room for.
var ErrFlood = errors.New("the guest sends more output than it may")

const (
	window = 256 << 10 // most bytes of each stream in flight
	chunk  = 16 << 10  // most bytes of output in one message
	input  = 8 << 10   // most bytes of input in one request
)

// The operations of the guest.
var (
	opRun    = agent.NewOperation[runArgs, Status]("session")
	opInput  = agent.NewOperation[inputArgs, agent.None]("session-input")
	opCredit = agent.NewOperation[creditArgs, agent.None]("session-credit")
	opSize   = agent.NewOperation[sizeArgs, agent.None]("session-size")
)

// streams, by their numbers as file descriptors.
const (
	stdout = 1
	stderr = 2
)

// Arguments of the operations, and the progress of "session".
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
