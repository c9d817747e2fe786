package guests

import (
	"fmt"
	"strconv"
)

// Percent writes a share for people: two digits of what is below 1 %, else one decimal.
func Percent(share float64) string {
	switch p := 100 * share; {
	case p == 0:
		return "0 %"
	case p < 0.001:
		return "<0.001 %"
	case p < 1:
		return strconv.FormatFloat(p, 'g', 2, 64) + " %"
	default:
		return fmt.Sprintf("%.1f %%", p)
	}
}
