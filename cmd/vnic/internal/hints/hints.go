// Package hints says which words a user probably meant, and makes shells complete them.
package hints

import (
	"errors"
	"fmt"
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

// alike returns the word that was probably meant; "": none.
func alike(s string, words []string) (best string) {
	least := min(max(1, len(s)/3)+1, len(s)) // not a word in which hardly a letter is right
	for _, w := range words {
		if s != "" && strings.HasPrefix(w, s) {
			return w
		}
	}
	for _, w := range words {
		if n := levenshtein.ComputeDistance(s, w); n < least {
			best, least = w, n
		}
	}
	return best
}

// meantFlag finds the flag that was meant by one that is not known: "unknown flag: --mtuu", as pflag
// says it.
func meantFlag(c *cobra.Command, err error) string {
	_, name, ok := strings.Cut(err.Error(), "unknown flag: --")
	if !ok { // "unknown shorthand flag: 'n' in -nic": one hyphen, as QEMU's
		_, name, ok = strings.Cut(err.Error(), " in -")
		ok = ok && len(name) > 1 && strings.HasPrefix(err.Error(), "unknown shorthand flag")
	}
	if !ok {
		return ""
	}
	var names []string
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	if like := alike(strings.TrimSpace(name), names); like != "" {
		return "--" + like
	}
	return ""
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
			if like := alike(word, words); like != "" && like != word {
				meant = fmt.Sprintf("--%s %s", name, like)
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
	like := meantFlag(c, err)
	if like == "" {
		like = v.value(c, err)
	}
	if _, rest, ok := strings.Cut(err.Error(), `unknown command "`); like == "" && ok {
		name, _, _ := strings.Cut(rest, `"`)
		var names []string
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				names = append(names, sub.Name())
			}
		}
		if like = alike(name, names); like != "" {
			like = c.CommandPath() + " " + like
		}
	}
	if like == "" {
		return ""
	}
	return "\ndid you mean " + like + "?"
}
