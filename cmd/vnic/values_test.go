package main

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"vnic.dev/vnic/internal/testkit"
)

func ran(args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	status = realMain(context.Background(), args, &out, &errs)
	return status, out.String(), errs.String()
}

// Invariant: vnic: A mistake gives one message that says what to do, and leaves nothing.
func TestMistakesSayWhatWasProbablyMeant(t *testing.T) {
	for line, want := range map[string]string{
		"bot":                                 "did you mean vnic boot?",
		"lab shw":                             "did you mean vnic lab show?",
		"boot --mtuu 3":                       "did you mean --mtu?",
		"boot -nic gve":                       "did you mean --nic?",
		"boot --nic gvee -- true":             "did you mean --nic gve?",
		"run --nic virtio,gv":                 "did you mean --nic gve?",
		"run --mode devmen":                   "did you mean --mode devmem?",
		"run --guest inpro":                   "did you mean --guest inproc?",
		"run --gpu-driver vnicgp":             "did you mean --gpu-driver vnicgpu?",
		"serve --sandbox of --socket-path /x": "did you mean --sandbox off?",
		"allreduce --op allgathr":             "did you mean --op all_gather?",
		"run --mode nonsense":                 "",
		"run --size x":                        "",
		"boot -x":                             "",
		"frobnicate":                          "",
	} {
		status, _, stderr := ran(strings.Fields(line)...)
		if status != exitUsage || !strings.Contains(stderr, want) || want == "" && strings.Contains(stderr, "did you mean") {
			t.Errorf("%s: %d, %s", line, status, stderr)
		}
		if first, _, _ := strings.Cut(stderr, "\n"); !strings.HasPrefix(first, "vnic: ") || strings.Contains(first, "mean") {
			t.Errorf("%s: the first line is %q", line, first)
		}
	}
}

func TestFlagAndCommandPrintTheSameVersion(t *testing.T) {
	_, flag, _ := ran("--version")
	if _, command, _ := ran("version"); flag != command || !strings.HasPrefix(flag, "vnic ") {
		t.Errorf("%q and %q", flag, command)
	}
}

func TestShellsCompleteValuesOfFlags(t *testing.T) {
	seen := map[string]bool{}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			words, known := flagValues[f.Name]
			if !known || f.Value.Type() == "bool" {
				return
			}
			seen[f.Name] = true
			args := append([]string{"__complete"}, strings.Fields(c.CommandPath())[1:]...)
			_, out, _ := ran(append(args, "--"+f.Name, "")...)
			if got := strings.Split(out, "\n"); !slices.Equal(got[:min(len(words), len(got))], words) {
				t.Errorf("%s --%s: %q, want %q", c.CommandPath(), f.Name, got, words)
			}
		})
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRoot())
	for _, name := range []string{"nic", "device", "lab", "sandbox", "guest", "mode", "p2p", "gateway", "sabotage"} {
		if !seen[name] {
			t.Errorf("no command has --%s", name)
		}
	}
	for line, want := range map[string]string{
		"run --nic gve,": "gve,virtio\ngve,gve\n:4\n", "run --mtu ": ":4\n",
		"boot --log-dir ": ":16\n", "run --pcap ": ":0\n",
	} {
		args := strings.Split("__complete "+line, " ")
		_, out, _ := ran(args...)
		testkit.Equal(t, line, out, want)
	}
}
