export MODEL=meta-llama/Llama-3.1-8B-Instruct
vllm serve "$MODEL" --speculative-model '[ngram]' --num-speculative-tokens 5 --ngram-prompt-lookup-max 4 --use-v2-block-manager --tensor-parallel-size 2
llama-server -m target.gguf -md draft.gguf --draft-max 16 --draft-min 4 --draft-p-min 0.5 -ngl 99 -fa
