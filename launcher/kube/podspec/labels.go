package podspec

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Labels that select the pods of one owner or of one kernelspec. LabelValue returns their values. The annotations with
// the same keys hold the names unchanged.
const (
	LabelOwner = AnnotationOwner
	LabelSpec  = annotationSpec
)

// hashedPrefix begins a label's value that is a hash. Names that begin so are hashed too, so that no name has the value
// of another one.
const hashedPrefix = "sha256-"

// LabelValue returns a name as the value of a label: the name itself if it is a valid value, else hashedPrefix and the
// first 40 hexadecimal digits of the name's SHA-256. Different names have different values.
func LabelValue(name string) string {
	if len(validation.IsValidLabelValue(name)) == 0 && !strings.HasPrefix(name, hashedPrefix) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return hashedPrefix + hex.EncodeToString(sum[:])[:40]
}
