package main

import (
	"encoding/json"
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"vnic.dev/vnic/qemu"
)

func doctorCommand() *cobra.Command {
	var o qemu.Options
	var asJSON bool
	c := &cobra.Command{
		Use:     "doctor",
		Short:   "Say what this machine has, what is missing, and what a run will download and need",
		Example: "  vnic doctor\n  vnic doctor --json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			rep := qemu.Doctor(c.Context(), o)
			if asJSON {
				e := json.NewEncoder(os.Stdout)
				e.SetIndent("", "  ")
				return e.Encode(rep)
			}
			tw := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
			for _, f := range rep.Facts {
				mark := "ok"
				if !f.OK {
					mark = "--"
				}
				fmt.Fprintf(tw, "%s\t%s\t%s\n", mark, f.Name, f.Value)
				if f.Fix != "" {
					fmt.Fprintf(tw, "\t\tto do: %s\n", f.Fix)
				}
			}
			if err := tw.Flush(); err != nil {
				return err
			}
			switch {
			case rep.Ready:
				fmt.Println("\nready: 'vnic run' needs no download")
			case rep.CanFetch:
				fmt.Printf("\nready: the first 'vnic run' downloads %d MB and needs %d MB in the cache\n", rep.DownloadBytes/1e6, rep.DiskBytes/1e6)
			default:
				fmt.Println("\nnot ready for QEMU guests; 'vnic run --guest inproc' works all the same")
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	c.Flags().StringVar(&o.CacheDir, "cache", "", "cache directory")
	c.Flags().StringVar(&o.QEMU, "qemu", "", "QEMU to look at")
	c.Flags().StringVar(&o.Kernel, "kernel", "", "guest kernel to look at")
	c.Flags().StringVar(&o.Modules, "modules", "", "directory with its modules")
	c.Flags().StringVar(&o.Mirror, "mirror", "", "Debian mirror")
	c.Flags().StringVar(&o.Keyring, "keyring", "", "keyring that signs the mirror")
	return c
}
