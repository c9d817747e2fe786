// Command sh is the shell of vnic's guests unless vnic copies a shell of the host into them: sh [-e] [-u] [-x]
// [-c COMMAND] [SCRIPT] [ARGUMENT...]. It uses the interpreter of mvdan.cc/sh, as u-root's gosh does; gosh gives
// scripts no arguments.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"golang.org/x/term"
	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"
)

func main() {
	err := run(os.Args[1:])
	if status, ok := interp.IsExitStatus(err); ok {
		os.Exit(int(status))
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "sh: %v\n", err)
		os.Exit(2)
	}
}

// run runs the command of -c, a script, or standard input; converse runs standard input if it is a terminal.
func run(args []string) error {
	var params []string
	command, commanded := "", false
	for len(args) > 0 && len(args[0]) > 1 && (args[0][0] == '-' || args[0][0] == '+') {
		word := args[0]
		args = args[1:]
		if word == "--" {
			break
		}
		if word[0] == '-' && strings.Contains(word, "c") {
			if len(args) == 0 {
				return errors.New("-c: no command")
			}
			commanded, command, args = true, args[0], args[1:]
			word = strings.ReplaceAll(word, "c", "")
		}
		if word = strings.NewReplacer("i", "", "l", "", "s", "").Replace(word); len(word) > 1 {
			params = append(params, word)
		}
	}
	from, name := io.Reader(os.Stdin), ""
	switch {
	case commanded:
		from = strings.NewReader(command)
		if len(args) > 0 {
			name, args = args[0], args[1:]
		}
	case len(args) > 0:
		f, err := os.Open(args[0])
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		from, name, args = f, args[0], args[1:]
	case term.IsTerminal(int(os.Stdin.Fd())):
		return converse(params)
	}
	shell, err := interp.New(interp.StdIO(os.Stdin, os.Stdout, os.Stderr),
		interp.Params(append(append(params, "--"), args...)...))
	if err != nil {
		return err
	}
	program, err := syntax.NewParser().Parse(from, name)
	if err != nil {
		return err
	}
	return shell.Run(context.Background(), program)
}

// converse runs the commands that a person types, until standard input ends or a command ends the shell.
func converse(params []string) error {
	shell, err := interp.New(interp.StdIO(os.Stdin, os.Stdout, os.Stderr), interp.Interactive(true),
		interp.Params(append(params, "--")...))
	if err != nil {
		return err
	}
	host, _ := os.Hostname()
	prompt := func() { fmt.Printf("%s:%s$ ", host, shell.Dir) }
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt) // an interrupt must not end the shell
	go func() {
		for range interrupts {
			fmt.Println()
		}
	}()
	shell.Reset()
	var last error
	parser := syntax.NewParser()
	for {
		prompt()
		err := parser.Interactive(os.Stdin, func(stmts []*syntax.Stmt) bool {
			if parser.Incomplete() {
				fmt.Print("> ")
				return true
			}
			for _, s := range stmts {
				ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
				last = shell.Run(ctx, s)
				interrupted := ctx.Err() != nil
				stop()
				if interrupted {
					break
				}
				if _, ok := interp.IsExitStatus(last); last != nil && !ok {
					fmt.Fprintf(os.Stderr, "sh: %v\n", last)
				}
				if shell.Exited() {
					return false
				}
			}
			prompt()
			return true
		})
		if err == nil || shell.Exited() {
			return last
		}
		fmt.Fprintf(os.Stderr, "sh: %v\n", err) // a syntax error does not end the shell
	}
}
