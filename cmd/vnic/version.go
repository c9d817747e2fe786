package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// stamped is the version that the Makefile knows. Without it, the module's says which one this is.
var stamped string

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  vnic version",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return printVersion(c.OutOrStdout()) },
	}
}

// printVersion is what the command version and the flag --version do.
func printVersion(w io.Writer) error {
	version, revision := "(devel)", ""
	if stamped != "" {
		version = stamped
	} else if i, ok := debug.ReadBuildInfo(); ok {
		if i.Main.Version != "" {
			version = i.Main.Version
		}
		for _, s := range i.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				revision = " " + s.Value[:12]
			}
		}
	}
	_, err := fmt.Fprintf(w, "vnic %s%s, %s %s/%s\n", version, revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}
