package enterprise

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxID is the largest id of a user or group in Kubernetes.
const maxID = 1<<31 - 1

// prohibited returns what explains a list of prohibited ids: the ranges of ids that the policy's key must have.
func prohibited(key string) func(value) string {
	return func(v value) string {
		where := "clients." + key + " in the file of --kube-policy, policy.clients." + key + " of the chart,"
		var ids []int64
		for t := range strings.SplitSeq(strings.Join(v.texts, ","), ",") {
			t = strings.TrimSpace(t)
			id, err := strconv.ParseInt(t, 10, 64)
			if err != nil && t != "" {
				return where + " has the allowed ids; the prohibited ones are not a list of numbers here"
			}
			if t != "" && id >= 0 && id <= maxID {
				ids = append(ids, id)
			}
		}
		ranges := "[" + strings.Join(allowed(ids), ", ") + "]"
		if ranges == fmt.Sprintf("[1-%d]", maxID) {
			return "has its effect without a setting: " + where + " is " + ranges + " unless it is set"
		}
		return fmt.Sprintf("%s must be %s. Now it is [1-%d] unless it is set", where, ranges, maxID)
	}
}

// allowed returns the ranges of ids from 0 that are left without the prohibited ones.
func allowed(prohibited []int64) []string {
	slices.Sort(prohibited)
	var ranges []string
	first := int64(0)
	for _, id := range append(slices.Compact(prohibited), maxID+1) {
		switch {
		case first == id-1:
			ranges = append(ranges, strconv.FormatInt(first, 10))
		case first < id:
			ranges = append(ranges, fmt.Sprintf("%d-%d", first, id-1))
		}
		first = id + 1
	}
	return ranges
}

// defaultAccount explains the service account of kernels whose kernelspec names none.
func defaultAccount(v value) string {
	if len(v.texts) == 1 && v.texts[0] == "default" {
		return "kernels of ekg have this account, too, unless metadata.ekg.serviceAccountName of a kernelspec names another"
	}
	return "kernels have the account default unless metadata.ekg.serviceAccountName of a kernelspec names another"
}
