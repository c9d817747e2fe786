//go:build docs

package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"vnic.dev/vnic/internal/job/serve"
	"vnic.dev/vnic/internal/manual"
)

// With the build tag docs vnic has the hidden command docs, for `make install` and `make release`.
func init() { more = append(more, docsCommand) }

func docsCommand() *cobra.Command {
	var dir, backend string
	c := &cobra.Command{
		Use:    "docs",
		Hidden: true,
		Short:  "Write man pages, completions and the backend's description (for packaging)",
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			root := newRoot()
			root.DisableAutoGenTag = true
			seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
			if err != nil {
				return errors.New("SOURCE_DATE_EPOCH is not set: pages bear the date of their source")
			}
			date := time.Unix(seconds, 0).UTC()
			in := func(name string) string { return filepath.Join(dir, name) }
			for _, d := range []string{"man/man1", "bash-completion/completions", "zsh/site-functions",
				"fish/vendor_completions.d", "qemu/vhost-user"} {
				if err := os.MkdirAll(in(d), 0o755); err != nil {
					return err
				}
			}
			description, err := os.Create(in("qemu/vhost-user/50-vnic.json"))
			if err != nil {
				return err
			}
			return errors.Join(
				manTree(root, &doc.GenManHeader{Section: "1", Source: "vnic", Manual: "vnic", Date: &date}, in("man/man1")),
				root.GenBashCompletionFileV2(in("bash-completion/completions/vnic"), true),
				root.GenZshCompletionFile(in("zsh/site-functions/_vnic")),
				root.GenFishCompletionFile(in("fish/vendor_completions.d/vnic.fish"), true),
				serve.PrintDescription(description, backend), description.Close())
		},
	}
	c.Flags().StringVar(&dir, "dir", "", "where: what PREFIX/share is to have")
	c.Flags().StringVar(&backend, "backend", "", "where the backend's program will be")
	return c
}

// manTree writes the man pages of c and its subcommands to dir, as doc.GenManTree does, with manual.Finish for each.
func manTree(c *cobra.Command, h *doc.GenManHeader, dir string) error {
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && !sub.IsAdditionalHelpTopicCommand() {
			if err := manTree(sub, h, dir); err != nil {
				return err
			}
		}
	}
	var page bytes.Buffer
	header := *h // GenMan changes it
	if err := doc.GenMan(c, &header, &page); err != nil {
		return err
	}
	name := strings.ReplaceAll(c.CommandPath(), " ", "-") + "." + h.Section
	return os.WriteFile(filepath.Join(dir, name), []byte(manual.Finish(c, page.String())), 0o644)
}
