//! The shapes of the kernel's words in the OpenAPI document: ids by their text, statuses by name. The kernel itself knows
//! nothing of schemas.

use std::borrow::Cow;

use abide_kernel::{ManualKind, Policy, Status};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

macro_rules! shape {
    ($name:ident, $word:literal, $schema:expr) => {
        pub(crate) struct $name;

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                $word.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    };
}

shape!(Run, "RunId", json_schema!({"type": "string", "pattern": "^run_[0-9a-f]{32}$"}));
shape!(Claim, "ClaimId", json_schema!({"type": "string", "pattern": "^claim_[0-9a-f]{32}_(0|[1-9][0-9]*)$"}));
shape!(Boundary, "BoundaryId", json_schema!({"type": "string", "pattern": "^manual_[0-9a-f]{32}\\.(0|[1-9][0-9]*)$"}));
shape!(Letter, "LetterId", json_schema!({"type": "string", "pattern": "^letter_(0|[1-9][0-9]*)$"}));
shape!(Token, "TokenId", json_schema!({"type": "string", "pattern": "^[0-9a-f]{16}$"}));
shape!(
    Traceparent,
    "Traceparent",
    json_schema!({
        "type": "string",
        "pattern": "^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$",
    })
);
shape!(
    Key,
    "IdempotencyKey",
    json_schema!({
        "type": "string",
        "pattern": "^(req_[0-9a-f]{32}|[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-7[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12})$",
    })
);
shape!(
    Standing,
    "Status",
    json_schema!({"type": "string", "enum": Status::ALL.map(|status| status.to_string()).to_vec()})
);
shape!(
    Kind,
    "BoundaryKind",
    json_schema!({"type": "string", "enum": ManualKind::ALL.map(|kind| kind.to_string()).to_vec()})
);

shape!(
    EffectPolicy,
    "Policy",
    json_schema!({"type": "string", "enum": Policy::ALL.map(|policy| policy.to_string()).to_vec()})
);
shape!(
    Woken,
    "WakeReason",
    json_schema!({"type": "string", "enum": ["signal", "timer", "children", "deadline", "ledger"]})
);

shape!(Consumed, "Consume", json_schema!({"type": "string", "enum": ["presented", "by_name"]}));
shape!(Chosen, "Choice", json_schema!({"type": "string", "enum": ["resume", "approve", "reject", "complete"]}));

/// Claims as text.
pub(crate) mod claim {
    use abide_kernel::ClaimId;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(claim: &ClaimId, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(claim)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ClaimId, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use abide_kernel::{BoundaryId, LetterId, RunId};

    use super::*;

    fn words(schema: &Schema) -> Vec<String> {
        schema.as_value()["enum"].as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn words_of_a_shape_are_read_back() {
        let mut shapes = SchemaGenerator::default();
        for word in words(&Standing::json_schema(&mut shapes)) {
            assert_eq!(serde_json::from_value::<Status>(word.clone().into()).unwrap().to_string(), word);
        }
        for word in words(&Kind::json_schema(&mut shapes)) {
            assert_eq!(serde_json::from_value::<ManualKind>(word.clone().into()).unwrap().to_string(), word);
        }
        assert_eq!(RunId(10).to_string(), format!("run_{}a", "0".repeat(31)));
        assert_eq!(BoundaryId { run: RunId(10), op: 1 }.to_string(), format!("manual_{}a.1", "0".repeat(31)));
        assert_eq!(LetterId(7).to_string(), "letter_7");
    }
}
