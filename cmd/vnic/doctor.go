package main

import (
	"github.com/spf13/cobra"

	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/report/show"
)

func doctorCommand() *cobra.Command {
	var o assets.Options
	var asJSON, report bool
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine has, what is missing, and what a run will download and need",
		Long: `Say what this machine has, what is missing, and what a run will download and need. Nothing is changed, no
guest is started, and the network is not used.`,
		Example: `  vnic doctor
  vnic doctor --json
  vnic doctor --report       for an issue about KVM
  vnic doctor --kernel bzImage --modules lib/modules   would these do?`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			rep := qemu.Doctor(c.Context(), o)
			if report {
				return show.Text(c.OutOrStdout(), rep.PrintReport)
			}
			if asJSON {
				return show.JSON(c.OutOrStdout(), rep)
			}
			return show.Doctor(c.OutOrStdout(), rep)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	c.Flags().BoolVar(&report, "report", false, "print what an issue about KVM needs to say of this machine: processor, "+
		"kernel, KVM's modules and parameters, and what was tried; no names of machines, users or files")
	placeFlags(c.Flags(), &o)
	headersFlag(c.Flags(), &o)
	return c
}
