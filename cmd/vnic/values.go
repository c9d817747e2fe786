package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/agnivade/levenshtein"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"vnic.dev/vnic/cmd/vnic/internal/allreduce"
	"vnic.dev/vnic/cmd/vnic/internal/load"
	"vnic.dev/vnic/cmd/vnic/internal/run"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labfile"
	"vnic.dev/vnic/internal/nic/sabotage"
)

// flagValues are the words that a flag takes, whichever command it is of, for shells and for "did you mean": what a
// value may be says the command's own check.
var flagValues = map[string][]string{
	"nic":        {lab.Virtio, lab.GVE},
	"device":     {"virtio-net-pci", "vmxnet3", "e1000e"},
	"sandbox":    {"on", "log", "off"},
	"guest":      {"qemu", "inproc"},
	"mode":       {"devmem", "copy", "both"},
	"p2p":        {"on", "off"},
	"gateway":    {"nat", "isolated", "off"},
	"host-ports": {"all", "none"},
	"gpu-driver": {lab.DriverNode, lab.DriverVNICGPU},
	"family":     {"4", "6"},
	"end":        {"first-failure", "all"},
	"digest":     {run.DigestPieces, run.DigestSHA256},
	"format":     {load.Raw, load.Records, load.Safetensors},
	"op":         allreduce.Ops,
	"mr":         {"gpu", "ram", "odp"},
	"lab":        labfile.Presets(),
	"scale":      {"auto"},
	"allow-mac":  {"any"},
	"pause-at":   run.Stages,
	"sabotage":   append(faultNames(), "list"),
}

// openValues are flags of which some of the values are known: others are no mistakes.
var openValues = map[string]bool{"host-ports": true, "lab": true, "scale": true, "allow-mac": true, "sabotage": true}

func faultNames() (names []string) {
	for _, f := range sabotage.Faults() {
		names = append(names, f.Name)
	}
	return names
}

// completeValues has shells complete the values of a command's flags, and of its subcommands'.
func completeValues(c *cobra.Command) {
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if _, done := c.GetFlagCompletionFunc(f.Name); done {
			return
		}
		var complete cobra.CompletionFunc
		switch words, known := flagValues[f.Name]; {
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
		case f.Value.Type() == "string" && directoryFlags[f.Name]:
			complete = cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)
		case f.Value.Type() == "string" || strings.HasPrefix(f.Value.Type(), "string"):
			return // a file, as shells do it
		default: // a number, a time: no file
			complete = cobra.NoFileCompletions
		}
		_ = c.RegisterFlagCompletionFunc(f.Name, complete)
	})
	for _, sub := range c.Commands() {
		completeValues(sub)
	}
}

// directoryFlags take a directory.
var directoryFlags = map[string]bool{"log-dir": true, "modules": true, "headers": true, "cache": true, "log": true,
	"source": true,
	"tests":  true}

// alike is the word that was probably meant; "": none.
func alike(s string, words []string) (best string) {
	least := min(max(1, len(s)/3)+1, len(s)) // not a word of which hardly a letter is right
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

// meantValue finds what was meant by a flag's value that is none of those that the flag takes: "--nic gve".
func meantValue(c *cobra.Command, err error) (meant string) {
	look := func(name, value string) {
		words, known := flagValues[name]
		if !known || openValues[name] || meant != "" {
			return
		}
		for v := range strings.SplitSeq(strings.Trim(value, "[]"), ",") {
			v, _, _ = strings.Cut(v, "=") // --p2p off=1,3
			if like := alike(v, words); like != "" && like != v {
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

// meant says what was probably meant where an error is about a command, a flag or a value that there is not; "":
// nothing of these. It stands behind the error's first line.
func meant(c *cobra.Command, err error) string {
	like := meantFlag(c, err)
	if like == "" {
		like = meantValue(c, err)
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
