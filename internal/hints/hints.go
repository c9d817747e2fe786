// Package hints suggests the word that a user probably meant, and registers words for completion by shells.
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

// Values describes the values of flags, by the flags' names.
type Values struct {
	Words       map[string][]string
	Open        map[string]bool // flags that accept other values than their Words, too
	Directories map[string]bool // flags without Words that accept a directory
}

// Complete registers completions for the flags of a command and of its subcommands that have none yet. A string flag
// that v does not describe gets none: shells then complete names of files.
func (v *Values) Complete(c *cobra.Command) {
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if _, done := c.GetFlagCompletionFunc(f.Name); done {
			return
		}
		var complete cobra.CompletionFunc
		switch words, known := v.Words[f.Name]; {
		case f.Name == "lab":
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
		case strings.HasPrefix(f.Value.Type(), "string"):
			return // a file: shells complete its name by themselves
		default:
			complete = cobra.NoFileCompletions
		}
		_ = c.RegisterFlagCompletionFunc(f.Name, complete)
	})
	for _, sub := range c.Commands() {
		v.Complete(sub)
	}
}

// alike returns prefix followed by the first word that begins with s, or else by the word nearest to s; "" if none is
// near.
func alike(prefix, s string, words []string) (best string) {
	least := min(max(1, len(s)/3)+1, len(s)) // less than all of s, and at most a third or one letter, may be wrong
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

// meantFlag returns the flag that the user meant, as "--nic", for pflag's error about an unknown flag; "": no flag is
// alike, or err is another error.
func meantFlag(c *cobra.Command, err error) string {
	_, name, ok := strings.Cut(err.Error(), "unknown flag: --")
	if !ok { // one hyphen, as for QEMU: "unknown shorthand flag: 'n' in -nic"
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

// meantCommand returns the subcommand of c that the user meant, after c's path, for cobra's error about an unknown
// command; "": no subcommand is alike, or err is another error.
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

// value returns the flag and value that the user meant ("--nic gve"), for an error about a value; "": none is alike.
func (v *Values) value(c *cobra.Command, err error) (meant string) {
	look := func(name, value string) {
		words, known := v.Words[name]
		if !known || v.Open[name] || meant != "" {
			return
		}
		for word := range strings.SplitSeq(strings.Trim(value, "[]"), ",") {
			word, _, _ = strings.Cut(word, "=") // as "off" in --p2p off=1,3
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

// Meant returns a line break and a line that suggests a flag, a value or a command, for an error about an unknown
// one; "" if nothing is alike.
func (v *Values) Meant(c *cobra.Command, err error) string {
	like := cmp.Or(meantFlag(c, err), v.value(c, err), meantCommand(c, err))
	if like == "" {
		return ""
	}
	return "\ndid you mean " + like + "?"
}
