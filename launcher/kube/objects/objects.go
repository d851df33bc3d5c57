// Package objects creates what a kernel's pod owns: its network policy, the objects of its kernelspec and its secret.
//
// Objects of a kernelspec are created after the pod that owns them. So the cluster deletes them with the pod, even if a
// gateway ends at any moment. They are created before the pod's secret, without which its containers do not start. The
// pod says in an annotation which objects it needs, so any gateway can create what is missing. The annotation is
// encrypted: who may read pods reads no Secret there, and who may write pods makes no gateway create an object.
//
// It keeps no state and starts no goroutines.
package objects

import (
	"context"
	"crypto/cipher"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/elastic-kernel-gateway/ekg/internal/goroutines"
	"github.com/elastic-kernel-gateway/ekg/launcher"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/cluster"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podbuild"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podspec"
	"github.com/elastic-kernel-gateway/ekg/launcher/kube/podstatus"
)

// Options configures Objects. All fields are needed.
type Options struct {
	Cluster *cluster.Cluster
	Pods    podbuild.Options
	Keys    podspec.MasterKeys
	Bound   func(context.Context) (context.Context, context.CancelFunc) // bounds one request
	Life    context.Context                                             // nothing is tried again after its end
}

// Objects creates what pods own. All methods may be called concurrently.
type Objects struct{ o Options }

// New returns Objects for one cluster.
func New(o Options) *Objects { return &Objects{o} }

// objectsCipher returns the cipher of a pod's objects. The annotation of one pod is rejected on another one.
func objectsCipher(pod *corev1.Pod, master podspec.MasterKey) (cipher.AEAD, error) {
	return master.Cipher(fmt.Sprintf("ekg objects of kernel %s/%s version 1", pod.Namespace, pod.Name))
}

// Seal encrypts the objects of a pod that is to be created.
func (s *Objects) Seal(pod *corev1.Pod) error {
	plain := pod.Annotations[podspec.AnnotationKernelObjects]
	if plain == "" {
		return nil
	}
	c, err := objectsCipher(pod, s.o.Keys[0])
	if err != nil {
		return err
	}
	sealed := c.Seal(nil, nil, []byte(plain), nil)
	pod.Annotations[podspec.AnnotationKernelObjects] = base64.StdEncoding.EncodeToString(sealed)
	return nil
}

// Open returns a pod whose objects are not encrypted: a copy, or the pod itself if it has none.
func (s *Objects) Open(pod *corev1.Pod) (*corev1.Pod, error) {
	text := pod.Annotations[podspec.AnnotationKernelObjects]
	if text == "" {
		return pod, nil
	}
	rec, err := podspec.ReadRecord(pod)
	if err != nil {
		return nil, err
	}
	sealed, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, errSealed
	}
	key, ok := s.o.Keys.Named(rec.MasterKey)
	if !ok {
		return nil, errSealed
	}
	c, err := objectsCipher(pod, key)
	if err != nil {
		return nil, err
	}
	plain, err := c.Open(nil, nil, sealed, nil)
	if err != nil {
		return nil, errSealed
	}
	pod = pod.DeepCopy()
	pod.Annotations[podspec.AnnotationKernelObjects] = string(plain)
	return pod, nil
}

// errSealed says that no gateway with this master key has written the objects of a pod.
var errSealed = &launcher.FailedError{Class: launcher.FailedRefused,
	Reason: "this gateway cannot decrypt what its pod says about them"}

// of returns what the kernelspec of a pod creates with it.
func (s *Objects) of(pod *corev1.Pod) ([]podbuild.Object, error) {
	opened, err := s.Open(pod)
	if err != nil {
		return nil, err
	}
	objects, err := podbuild.Objects(s.o.Pods, opened)
	if refused := (*launcher.RefusedError)(nil); errors.As(err, &refused) {
		err = &launcher.FailedError{Class: launcher.FailedRefused, Reason: refused.Reason}
	}
	return objects, err
}

// create creates an object of a pod. If an earlier pod of the kernel has it, the pod becomes its owner besides.
func (s *Objects) create(ctx context.Context, pod *corev1.Pod, o podbuild.Object) error {
	objects := s.o.Cluster.Objects.Resource(o.Resource).Namespace(pod.Namespace)
	_, err := objects.Create(ctx, o.Object, metav1.CreateOptions{FieldManager: cluster.FieldManager})
	if !apierrors.IsAlreadyExists(err) || !o.Kept() { // a Secret's name is that of its pod
		return err
	}
	got, err := objects.Get(ctx, o.Object.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return errObjectGoes // it has gone since then; the next attempt creates it
	}
	if err != nil {
		return err
	}
	owners := got.GetOwnerReferences()
	has := slices.ContainsFunc(owners, func(r metav1.OwnerReference) bool { return r.UID == pod.UID })
	rec, err := podspec.ReadRecord(pod)
	switch {
	case err != nil:
		return err
	case got.GetDeletionTimestamp() != nil, rec.Generation == 1 && !has: // that of another kernel with this id
		return errObjectGoes
	case !podbuild.IsObjectOf(got, pod):
		return &launcher.FailedError{Class: launcher.FailedRefused,
			Reason: "an object of its name is there, which no gateway has made for this kernel"}
	case has:
		return nil
	}
	return s.adopt(ctx, pod, got, o)
}

// errObjectGoes says that an object cannot be created yet.
var errObjectGoes = &launcher.FailedError{Class: launcher.FailedUnavailable,
	Reason: "an object of its name is still being removed"}

// adopt makes a pod the owner of an object besides the kernel's earlier pod. The cluster deletes the object when
// the last of its owners is gone. An object that was changed since it was read stays as it is.
func (s *Objects) adopt(ctx context.Context, pod *corev1.Pod, got *unstructured.Unstructured,
	o podbuild.Object) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": got.GetUID(),
		"resourceVersion": got.GetResourceVersion(),
		"ownerReferences": append(got.GetOwnerReferences(), podbuild.OwnerReference(pod))}})
	if err != nil {
		return err
	}
	_, err = s.o.Cluster.Objects.Resource(o.Resource).Namespace(pod.Namespace).Patch(ctx, got.GetName(),
		types.MergePatchType, patch, metav1.PatchOptions{FieldManager: cluster.FieldManager})
	if apierrors.IsNotFound(err) {
		return errObjectGoes
	}
	return err
}

// Create creates what a pod owns: its network policy, if its kernel has ports, the objects of its kernelspec, and then
// its secret. The containers start only with the secret, so a gateway that creates a missing secret creates the others
// too. With an error it returns the part that is missing. Each part is tried for some seconds.
func (s *Objects) Create(ctx context.Context, pod *corev1.Pod) (part string, err error) {
	return s.createBy(ctx, pod, s.insist)
}

// TryCreate is Create, but tries each part once.
func (s *Objects) TryCreate(ctx context.Context, pod *corev1.Pod) (part string, err error) {
	return s.createBy(ctx, pod, s.try)
}

// createBy creates what a pod owns. by calls what creates a part.
func (s *Objects) createBy(ctx context.Context, pod *corev1.Pod,
	by func(ctx context.Context, create func(context.Context) error) error) (string, error) {
	policy, err := podbuild.PortsPolicy(pod)
	if err != nil {
		return "network policy", err
	}
	if policy != nil {
		if err := by(ctx, func(ctx context.Context) error {
			policies := s.o.Cluster.Client.NetworkingV1().NetworkPolicies(pod.Namespace)
			_, err := policies.Create(ctx, policy, metav1.CreateOptions{})
			return err
		}); err != nil {
			return "network policy", err
		}
	}
	objects, err := s.of(pod)
	if err != nil {
		return "objects", err
	}
	for _, o := range objects {
		if err := by(ctx, func(ctx context.Context) error { return s.create(ctx, pod, o) }); err != nil {
			return o.String(), err
		}
	}
	rec, err := podspec.ReadRecord(pod)
	if err != nil {
		return "secret", err
	}
	if !s.o.Pods.MayGetKeys(pod, rec) {
		return "secret", ErrForeignKeys
	}
	k, err := s.o.Keys.Of(pod)
	if err != nil {
		return "secret", err
	}
	secret := podspec.BuildSecret(pod, k)
	return "secret", by(ctx, func(ctx context.Context) error {
		_, err := s.o.Cluster.Client.CoreV1().Secrets(pod.Namespace).Create(ctx, secret, metav1.CreateOptions{})
		return err
	})
}

// ErrForeignKeys says why a pod gets no secret. Pods that an earlier release has created before it ended are rejected,
// too.
var ErrForeignKeys = errors.New("its keys would not be those of its namespace alone")

// insist calls create until it succeeds or cannot succeed, for some seconds. An existing object is the same: its
// content follows from its pod.
func (s *Objects) insist(ctx context.Context, create func(context.Context) error) error {
	uncounted, cancel := s.o.Bound(ctx)
	defer cancel()
	for pause := 100 * time.Millisecond; ; pause *= 2 {
		asking, cancel := s.o.Bound(ctx)
		err := create(asking)
		cancel()
		if podstatus.IsUncounted(err) && goroutines.Sleep(uncounted, cluster.QuotaPause) == nil {
			pause /= 2
			continue
		}
		switch {
		case err == nil, apierrors.IsAlreadyExists(err):
			return nil
		case apierrors.IsForbidden(err), apierrors.IsInvalid(err), pause > time.Second:
			return err
		}
		if serr := goroutines.Sleep(s.o.Life, pause); serr != nil {
			return errors.Join(err, serr)
		}
	}
}

// try calls create once. An existing object is the same.
func (s *Objects) try(ctx context.Context, create func(context.Context) error) error {
	asking, cancel := s.o.Bound(ctx)
	defer cancel()
	if err := create(asking); !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}
