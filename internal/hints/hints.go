// Package hints says which words a user probably meant, and makes shells complete them.
package hints

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Values are what is known of the values of flags, by the flags' names.
type Values struct {
	Words       map[string][]string // that the flag takes
	Open        map[string]bool     // the flag takes others, too
	Directories map[string]bool     // the flag takes a directory
}

// Complete makes shells complete the values of a command's flags, and of its subcommands'.
func (v *Values) Complete(c *cobra.Command) {
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if _, done := c.GetFlagCompletionFunc(f.Name); done {
			return
		}
		var complete cobra.CompletionFunc
		switch words, known := v.Words[f.Name]; {
		case f.Name == "lab": // or a file
			complete = cobra.FixedCompletions(words, cobra.ShellCompDirectiveDefault)
		case known:
			complete = func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
				before := typed[:strings.LastIndexByte(typed, ',')+1]
				var list []string
				for _, w := range words {
					list = append(list, before+w)
				}
				return list, cobra.ShellCompDirectiveNoFileComp
			}
		case f.Value.Type() == "string" && v.Directories[f.Name]:
			complete = cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)
		case f.Value.Type() == "string" || strings.HasPrefix(f.Value.Type(), "string"):
			return // a file, as shells do it
		default: // a number, a time: no file
			complete = cobra.NoFileCompletions
		}
		_ = c.RegisterFlagCompletionFunc(f.Name, complete)
	})
	for _, sub := range c.Commands() {
		v.Complete(sub)
	}
}

// alike returns the one of words that was probably meant by s, behind prefix; "": none.
func alike(prefix, s string, words []string) (best string) {
	least := min(max(1, len(s)/3)+1, len(s)) // not a word in which hardly a letter is right
	for _, w := range words {
		if s != "" && strings.HasPrefix(w, s) {
			return prefix + w
		}
		if n := levenshtein.ComputeDistance(s, w); n < least {
			best, least = prefix+w, n
		}
	}
	return best
}

// meantFlag finds the flag that was meant by one that is not known: "unknown flag: --mtuu", as pflag says it.
func meantFlag(c *cobra.Command, err error) string {
	_, name, ok := strings.Cut(err.Error(), "unknown flag: --")
	if !ok { // "unknown shorthand flag: 'n' in -nic": one hyphen, as QEMU's
		_, name, ok = strings.Cut(err.Error(), " in -")
		ok = ok && len(name) > 1 && strings.HasPrefix(err.Error(), "unknown shorthand flag")
	}
	var names []string
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if ok && !f.Hidden {
			names = append(names, f.Name)
		}
	})
	return alike("--", strings.TrimSpace(name), names)
}

// meantCommand finds the command that was meant by one that does not exist.
func meantCommand(c *cobra.Command, err error) string {
	_, rest, _ := strings.Cut(err.Error(), `unknown command "`)
	name, _, _ := strings.Cut(rest, `"`)
	var names []string
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	return alike(c.CommandPath()+" ", name, names)
}

// value finds what was meant by a value that its flag does not take: "--nic gve".
func (v *Values) value(c *cobra.Command, err error) (meant string) {
	look := func(name, value string) {
		words, known := v.Words[name]
		if !known || v.Open[name] || meant != "" {
			return
		}
		for word := range strings.SplitSeq(strings.Trim(value, "[]"), ",") {
			word, _, _ = strings.Cut(word, "=") // --p2p off=1,3
			if !slices.Contains(words, word) {
				meant = cmp.Or(alike("--"+name+" ", word, words), meant)
			}
		}
	}
	c.Flags().Visit(func(f *pflag.Flag) {
		if strings.Contains(err.Error(), "--"+f.Name) {
			look(f.Name, f.Value.String())
		}
	})
	if bad := (*pflag.InvalidValueError)(nil); meant == "" && errors.As(err, &bad) {
		look(bad.GetFlag().Name, bad.GetValue())
	}
	return meant
}

// Meant returns what was probably meant where an error is about a command, a flag or a value that does not exist, to be
// printed behind the error's first line; "": nothing.
func (v *Values) Meant(c *cobra.Command, err error) string {
	like := cmp.Or(meantFlag(c, err), v.value(c, err), meantCommand(c, err))
	if like == "" {
		return ""
	}
	return "\ndid you mean " + like + "?"
}
