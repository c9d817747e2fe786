package main

import (
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"vnic.dev/vnic/internal/version"
)

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  vnic version",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return printVersion(c.OutOrStdout()) },
	}
}

func printVersion(w io.Writer) error {
	_, err := fmt.Fprintf(w, "vnic %s, %s %s/%s\n", version.String(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}
