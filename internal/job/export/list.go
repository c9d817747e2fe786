package export

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"vnic.dev/vnic/internal/machine/assets"
)

// Size formats the size of a cache entry.
func Size(e assets.CacheEntry) string {
	if e.Link != "" {
		return "a link"
	}
	return humanize.IBytes(uint64(e.Bytes))
}

func total(list []assets.CacheEntry) (n int64) {
	for _, e := range list {
		n += e.Bytes
	}
	return n
}

// Cache is the output of `vnic cache ls --json`.
type Cache struct {
	Cache   string              `json:"cache"`
	Bytes   int64               `json:"bytes"`
	Entries []assets.CacheEntry `json:"entries"`
}

// Contents returns the Cache of directory dir, whose entries are in list.
func Contents(dir string, list []assets.CacheEntry) Cache {
	return Cache{dir, total(list), append([]assets.CacheEntry{}, list...)}
}

// List prints list, the entries of the cache's directory dir.
func List(w io.Writer, dir string, list []assets.CacheEntry) error {
	if len(list) == 0 {
		_, err := fmt.Fprintf(w, "nothing in %s\n", dir)
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "NAME\tSIZE\tLAST USED\tNOTE")
	for _, e := range list {
		used := "-"
		if !e.Used.IsZero() {
			used = e.Used.Local().Format(time.DateTime)
		}
		fmt.Fprintln(tw, strings.TrimRight(shortName(e)+"\t"+Size(e)+"\t"+used+"\t"+cacheNote(e), "\t"))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%s in %s\n", humanize.IBytes(uint64(total(list))), dir)
	return err
}

func shortName(e assets.CacheEntry) string {
	const enough = len("images/") + 12
	if e.Kind == "images" && len(e.Name) > enough && !e.Partial {
		return e.Name[:enough]
	}
	return e.Name
}

func cacheNote(e assets.CacheEntry) string {
	var notes []string
	if e.Link != "" {
		notes = append(notes, "leads to "+e.Link)
	}
	if e.Current {
		notes = append(notes, "current")
	}
	if e.For != nil {
		notes = append(notes, "imported for "+strings.Join(e.For, " "))
	}
	if e.Partial {
		notes = append(notes, "unfinished")
	}
	if e.InUse && len(e.PIDs) > 0 {
		notes = append(notes, "in use by "+strings.Trim(fmt.Sprint(e.PIDs), "[]"))
	} else if e.InUse {
		notes = append(notes, "in use")
	}
	return strings.Join(notes, ", ")
}
