package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"

	"vnic.dev/vnic/tools/internal/entry"
	"vnic.dev/vnic/tools/internal/heirs"
)

// closing prints the old entries that have heirs, with their heirs. With --moved it omits entries that are their own
// heirs.
func closing(args []string, out, errs io.Writer) error {
	flags := flag.NewFlagSet("heirs", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	shallow := flags.Bool("shallow", false, "")
	moved := flags.Bool("moved", false, "")
	if err := flags.Parse(args); err != nil || flags.NArg() != 3 {
		return wrongUse(err)
	}
	old, err := entry.Read(flags.Arg(0))
	if err != nil {
		return err
	}
	now, err := entry.Read(flags.Arg(1))
	if err != nil {
		return err
	}
	rules, err := heirs.Read(flags.Arg(2))
	if err != nil {
		return err
	}
	if len(old) == 0 {
		return fmt.Errorf("%s: no entries", flags.Arg(0))
	}
	table, wrong := rules.Close(old, now, *shallow)
	w := bufio.NewWriter(out)
	var kept int
	for _, c := range table {
		if c.Old == c.Heir {
			kept++
			if *moved {
				continue
			}
		}
		fmt.Fprintln(w, c.Old.String()+entry.Arrow+c.Heir.String())
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(errs, "inventory: %d entries: %d as they were, %d with another heir, %d without\n",
		len(old), kept, len(table)-kept, len(old)-len(table))
	return wrong
}
