package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

type usageError struct {
	command string
	error
}

func (e usageError) Unwrap() error { return e.error }

// misuse marks err as wrong use of a command; nil stays nil.
func misuse(c *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	return usageError{c.CommandPath(), err}
}

func usagef(c *cobra.Command, format string, args ...any) error {
	return misuse(c, fmt.Errorf(format, args...))
}

func misuseIf[E error](c *cobra.Command, err error) error {
	if _, wrong := errors.AsType[E](err); wrong {
		return misuse(c, err)
	}
	return err
}

// isCobraUsage reports whether err is cobra's error for wrong use. It compares texts: these errors have no type.
func isCobraUsage(err error) bool {
	s := err.Error()
	for _, p := range []string{"unknown command", "accepts ", "requires at least", "if any flags in the group",
		"unknown flag", "unknown shorthand"} {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}

const helpTemplate = `{{with (or .Long .Short)}}{{. | trimTrailingWhitespaces}}

{{end}}{{if or .Runnable .HasSubCommands}}{{.UsageString}}{{end}}`

const usageTemplate = `{{if .HasExample}}Examples:
{{.Example}}

{{end}}Usage:{{if .HasAvailableSubCommands}}
  {{.CommandPath}} COMMAND [flags]

{{$all := .}}{{if .Groups}}{{range $i, $group := .Groups}}{{if $i}}

{{end}}{{.Title}}{{range $all.Commands}}{{if (and (eq .GroupID $group.ID) .IsAvailableCommand)}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}` +
	`{{else}}Commands:{{range .Commands}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}

See '{{.CommandPath}} COMMAND --help' for the flags of a command.{{else}}
  {{.UseLine}}{{end}}{{if .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsagesWrapped 120 | trimTrailingWhitespaces}}{{end}}
`
