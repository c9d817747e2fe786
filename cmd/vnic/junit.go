package main

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"vnic.dev/vnic/internal/report/junit"
	"vnic.dev/vnic/internal/report/show"
)

func junitCommand() *cobra.Command {
	var name string
	var status int
	c := &cobra.Command{
		Use:   "junit [FILE]",
		Short: "Make JUnit's XML of what a test program has printed: TAP, or go test -json",
		Long: `Make JUnit's XML, which CI shows, of what a test program has printed to FILE or stdin: TAP, the kernel's KTAP,
or the output of 'go test -json'. A program that prints none of these is one case, which --status decides. Lines
of several guests of 'vnic boot', which begin with [0], [1] and so on, are a suite for each guest.`,
		Example: `  vnic boot --guests 2 -- ./mytest | tee out; vnic junit out > junit.xml
  vnic boot -- go test -json ./... > out; vnic junit --status $? out > junit.xml`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if status < 0 || status > 255 {
				return usagef(c, "--status %d: an exit status is 0 to 255", status)
			}
			in := c.InOrStdin()
			if len(args) == 1 && args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer f.Close()
				in = f
			} else if f, ok := in.(*os.File); ok && show.IsTerminal(f) {
				return usagef(c, "stdin is a terminal: name a file, or give what a program prints: ./test | vnic junit")
			}
			all, err := junit.Convert(in, name, status)
			if err != nil {
				return fmt.Errorf("what was printed cannot be read: %w", err)
			}
			var b bytes.Buffer
			if err := all.Write(&b); err != nil {
				return err
			}
			_, err = io.Copy(c.OutOrStdout(), &b)
			return err
		},
	}
	c.Flags().StringVar(&name, "name", "test", "what the program is called")
	c.Flags().IntVar(&status, "status", 0,
		"its exit status: with another than 0 something has failed, whatever it printed")
	return c
}
