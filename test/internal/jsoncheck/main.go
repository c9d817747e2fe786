// Command jsoncheck checks JSON on stdin against conditions (package conditions).
//
//	jsoncheck 'runs.0.tx.device == runs.0.bytes' 'runs.0.tx.host == 0' 'runs.1.tx.host >= 1000'
//
// It prints each condition with both values, or its error, and exits with 1 if one does not hold, none is given, or
// stdin has no JSON.
package main

import (
	"fmt"
	"os"

	"vnic.dev/vnic/test/internal/conditions"
)

func main() {
	doc, err := conditions.Read(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, "jsoncheck: no JSON:", err)
		os.Exit(1)
	}
	failed := len(os.Args) < 2
	for _, cond := range os.Args[1:] {
		ok, text := doc.Holds(cond)
		mark := "ok  "
		if !ok {
			mark, failed = "FAIL", true
		}
		fmt.Println(mark, text)
	}
	if failed {
		os.Exit(1)
	}
}
