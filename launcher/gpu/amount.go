package gpu

import (
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
)

// Amount is a number of GPUs in thousandths of one, so that sums of shares are exact. In JSON it is a number of GPUs
// such as 2 or 0.25.
type Amount int64

// One is one whole GPU.
const One Amount = 1000

// maxAmount bounds what ParseAmount accepts: a million GPUs. Sums of a million of them fit in an Amount.
const maxAmount = 1_000_000 * One

// Whole returns the amount of n whole GPUs, a million at most. n is not negative.
func Whole(n int64) Amount { return Amount(min(n, int64(maxAmount/One))) * One }

// Times returns the amount multiplied by n/of, a million GPUs at most. n is not negative, of is positive.
func (a Amount) Times(n, of int64) Amount {
	if a == 0 || n <= int64(maxAmount)*of/int64(a) {
		return a * Amount(n) / Amount(of)
	}
	return maxAmount
}

// ParseAmount reads a decimal number of GPUs with at most three digits after the point.
func ParseAmount(text string) (Amount, error) {
	whole, part, point := strings.Cut(text, ".")
	n, err := strconv.ParseUint(whole, 10, 31)
	if err != nil || point && (part == "" || len(part) > 3) {
		return 0, errors.New("not a number of GPUs like 1 or 0.25, with at most three digits after the point")
	}
	thousandths, err := strconv.ParseUint((part + "000")[:3], 10, 31)
	a := Amount(n)*One + Amount(thousandths)
	if err != nil || a > maxAmount {
		return 0, errors.New("not a number of GPUs like 1 or 0.25, up to a million")
	}
	return a, nil
}

// String returns the number of GPUs without needless zeros: "2" or "0.25".
func (a Amount) String() string { return strconv.FormatFloat(a.Float(), 'f', -1, 64) }

// Float returns the number of GPUs.
func (a Amount) Float() float64 { return float64(a) / float64(One) }

// MarshalJSON returns the number of GPUs.
func (a Amount) MarshalJSON() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalJSON reads a number of GPUs.
func (a *Amount) UnmarshalJSON(b []byte) error {
	var n float64
	if err := json.Unmarshal(b, &n); err != nil {
		return err
	}
	if !(n >= 0 && n <= maxAmount.Float()) { // also rejects NaN
		return errors.New("not a number of GPUs")
	}
	*a = Amount(math.Round(n * float64(One)))
	return nil
}
