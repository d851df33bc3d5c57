package cluster

import (
	"errors"
	"slices"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

func TestReviewToken(t *testing.T) {
	c := fake.NewSimpleClientset()
	var status authenticationv1.TokenReviewStatus
	var fail error
	var asked authenticationv1.TokenReviewSpec
	c.PrependReactor("create", "tokenreviews", func(a k8stesting.Action) (bool, runtime.Object, error) {
		review := a.(k8stesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
		asked, review.Status = review.Spec, status
		return true, review, fail
	})
	cluster := &Cluster{Client: c}
	bot := authenticationv1.UserInfo{Username: "system:serviceaccount:ns:bot", Groups: []string{"g"}}
	for name, tt := range map[string]struct {
		status    authenticationv1.TokenReviewStatus
		audiences []string
		ok        bool
	}{
		"known":   {authenticationv1.TokenReviewStatus{Authenticated: true, User: bot}, nil, true},
		"unknown": {authenticationv1.TokenReviewStatus{Error: "expired", User: bot}, nil, false},
		"for us": {
			authenticationv1.TokenReviewStatus{Authenticated: true, User: bot, Audiences: []string{"x", "ekg"}},
			[]string{"ekg", "y"}, true,
		},
		"for others": {
			authenticationv1.TokenReviewStatus{Authenticated: true, User: bot, Audiences: []string{"x"}},
			[]string{"ekg"}, false,
		},
		"the cluster is too old": {
			authenticationv1.TokenReviewStatus{Authenticated: true, User: bot},
			[]string{"ekg"}, false,
		},
	} {
		status = tt.status
		user, groups, ok, err := cluster.ReviewToken(t.Context(), "canary", tt.audiences)
		if ok != tt.ok || err != nil || ok && (user != bot.Username || !slices.Equal(groups, bot.Groups)) ||
			!ok && user != "" {
			t.Errorf("%s: got %q %v %v %v", name, user, groups, ok, err)
		}
		if asked.Token != "canary" || !slices.Equal(asked.Audiences, tt.audiences) {
			t.Errorf("%s: asked %+v", name, asked)
		}
	}
	fail = errors.New("forbidden")
	if _, _, ok, err := cluster.ReviewToken(t.Context(), "canary", nil); ok || !errors.Is(err, fail) {
		t.Errorf("got %v, %v", ok, err)
	}
}
