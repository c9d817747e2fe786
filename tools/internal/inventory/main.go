// Command inventory lists the tests and checks of a checkout. Given an older and a newer list and a mapping, it finds
// the successors (heirs) of the old entries. See the heads of tools/inventory/list and tools/inventory/heirs.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

const usage = `usage: tools/inventory/list [--run] [--results DIR] [--timeout T] [DIR]
       tools/inventory/heirs [--shallow] [--moved] OLD NEW MAPPING
their heads tell more`

func main() {
	err := run(os.Args[1:], os.Stdout, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Println(usage)
	} else if err != nil {
		fmt.Fprintln(os.Stderr, "inventory:", err)
		os.Exit(1)
	}
}

func run(args []string, out, errs io.Writer) error {
	if len(args) > 0 {
		switch args[0] {
		case "list":
			return list(args[1:], out, errs)
		case "heirs":
			return closing(args[1:], out, errs)
		}
	}
	return wrongUse(nil)
}

// wrongUse returns an error with the usage, and with err if it is not nil. It returns an err that is flag.ErrHelp
// unchanged.
func wrongUse(err error) error {
	if err == nil {
		return errors.New(usage)
	}
	if errors.Is(err, flag.ErrHelp) {
		return err
	}
	return fmt.Errorf("%w\n%s", err, usage)
}
