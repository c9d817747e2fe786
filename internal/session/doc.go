// Package session runs a program in a guest with its streams on the host: standard output and error
// come out byte for byte as the program writes them, its input goes in, and its exit status or
// signal comes back. With a terminal, the program leads a session on a pseudoterminal of the guest,
// whose size follows the host's.
//
// It is both ends: Ops registers the guest's operations with package agent, Run is the host's call
// of them. Output is progress of the operation "session"; the guest sends no more than the host has
// room for (window), and the host gives room back with "session-credit" when its reader has taken the
// bytes: a host that does not read stops the program, not the memory. Input is one request at a
// time, answered when the program's pipe has taken it.
package session

import (
	"errors"
	"io"

	"vnic.dev/vnic/internal/agent"
)

// Command is a program to be run.
type Command struct {
	Path string   // in the guest; without a slash it is looked for in PATH of Env
	Args []string // with argv[0]
	Env  []string
	Dir  string // "" = /

	// Stdin may be nil: the program reads its end at once. If it is an io.Closer, Run closes it at its
	// end, and waits for Read.
	Stdin  io.Reader
	Stdout io.Writer // nil: dropped
	Stderr io.Writer

	TTY    bool        // all on a terminal, whose output is Stdout
	Size   Size        // of the terminal
	Resize <-chan Size // its new sizes; may be nil
}

// Size of a terminal, in characters.
type Size struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// Status is how a program ended.
type Status struct {
	Code   int `json:"code"`             // exit status, if no signal ended it
	Signal int `json:"signal,omitempty"` // 0 = none
}

// Exit is the status as a shell gives it: 128 and the signal's number for a signal.
func (s Status) Exit() int {
	if s.Signal != 0 {
		return 128 + s.Signal
	}
	return s.Code
}

// ErrFlood says that a guest sent more than it was given room for.
var ErrFlood = errors.New("the guest sends more output than it may")

const (
	window = 256 << 10 // bytes of each stream that are under way
	chunk  = 16 << 10  // of output, in one message
	input  = 8 << 10   // of input, in one request
)

// The operations.
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

// Arguments of the operations, and what "session" reports.
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
	report struct { // with neither stream nor data: the program runs
		Stream int    `json:"stream,omitempty"`
		Data   []byte `json:"data,omitempty"`
	}
)
